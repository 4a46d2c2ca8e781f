#include "framework/program/program.hpp"

#include <algorithm>
#include <chrono>
#include <climits>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>

#include "framework/program/block.hpp"
#include "framework/program/store.hpp"
#include "framework/runtime/trace.hpp"
#include "framework/tile/submit.hpp"

namespace tegula {

struct Result::State {
  struct Output {
    std::vector<std::int64_t> extents;
    std::vector<double> values;
    std::int64_t missing_tiles = 0;
  };
  Runtime* runtime;
  std::mutex mutex;
  std::condition_variable arrived;
  std::map<int, Output> outputs;  // by tensor
  bool lost = false;              // a tile will never arrive: the error of a kernel ended the tasks behind it

  const Output& find(const Tensor& tensor) const {
    if (runtime->rank() != 0) throw std::logic_error("[result] outputs are on rank 0 only");
    auto place = outputs.find(tensor.id());
    if (place == outputs.end())
      throw std::logic_error("[result] " + tensor.describe() +
                             " is not an output; name it in CompileOptions::outputs");
    return place->second;
  }
};

bool Result::ready() const {
  std::lock_guard lock(state_->mutex);
  for (const auto& [tensor, output] : state_->outputs)
    if (output.missing_tiles > 0) return false;
  return true;
}

std::vector<double> Result::values(const Tensor& tensor) const {
  const State::Output& output = state_->find(tensor);
  if (Runtime::simulated()) {  // where other actors have their turn only while this one waits for StarPU
    while (!ready()) state_->runtime->wait_until_pending(state_->runtime->pending() - 1);
    return output.values;
  }
  std::unique_lock lock(state_->mutex);
  // Woken now and then to see whether an error has ended the tasks that would have written the output.
  while (!state_->arrived.wait_for(lock, std::chrono::milliseconds(20),
                                   [&] { return output.missing_tiles == 0 || state_->lost; })) {
    lock.unlock();
    state_->runtime->wait_until_pending(INT_MAX);
    lock.lock();
  }
  if (output.missing_tiles > 0) {
    lock.unlock();
    state_->runtime->wait_until_pending(INT_MAX);
    throw std::runtime_error("[result] " + tensor.describe() +
                             " was not computed: an error, thrown earlier, ended the run");
  }
  return output.values;
}

double Result::value(const Tensor& tensor) const {
  std::vector<double> all = values(tensor);
  if (all.size() != 1)
    throw std::logic_error("[result] " + tensor.describe() + " is not a scalar; use values()");
  return all[0];
}

struct Program::State {
  std::shared_ptr<Store> store;
  CompileOptions options;
  Listing listing;
  std::vector<Tile> tiles;            // by buffer; empty where the store has it
  std::vector<const Tile*> operands;  // by buffer
  std::map<int, Filler> fillers;      // by input
  std::optional<submit::Turn> turn;   // where the listing has any
  std::int64_t first_tag = 0;         // of its messages

  struct Patch {
    std::string_view scalar;
    std::size_t offset;
    bool optional;
  };
  struct Task {
    submit::PreparedTask prepared;
    std::vector<Patch> patches;
  };
  std::vector<Task> tasks;            // in the order of the task instructions
  std::vector<const char*> received;  // what, in the order of the receive instructions
  // Where a trace is recorded: the number of the program in it, and labels, by instruction.
  std::size_t trace_number = 0;
  std::vector<const char*> trace_labels;
  std::map<int, Result::State::Output> outputs;  // by tensor, on rank 0: what every result starts as

  const Tile& tile(const Instruction& instruction) const { return *operands[instruction.buffers[0]]; }
  void prepare();
  void name_received(std::span<const char* const> labels);
  std::string brought(const Buffer& buffer) const;
  void enter(detail::Trace& trace);
  std::string trace_label(const Instruction& instruction, const Layout& layout,
                          const std::map<int, std::string>& layers) const;
  void check_inputs() const;
  void fetch(const Instruction& instruction, const char* label,
             const std::shared_ptr<Result::State>& result) const;
};

namespace {

// A copy of the label for the life of the process: StarPU keeps the pointer until the last task is traced, which may be
// after the program is gone.
const char* keep(std::string label) {
  static std::mutex mutex;
  static std::set<std::string> labels;
  std::lock_guard lock(mutex);
  return labels.insert(std::move(label)).first->c_str();
}

// Reports a tile of an output that never comes: the task that would bring it goes without having run.
class Arrival {
 public:
  explicit Arrival(std::function<void()> lose) : lose_(std::move(lose)) {}
  Arrival(const Arrival&) = delete;
  Arrival& operator=(const Arrival&) = delete;
  ~Arrival() {
    if (!arrived_) lose_();
  }
  void arrived() { arrived_ = true; }

 private:
  std::function<void()> lose_;
  bool arrived_ = false;
};

}  // namespace

void Program::State::prepare() {
  Runtime& runtime = *store->runtime;
  first_tag = runtime.reserve_tags();
  tiles.resize(listing.buffers.size());
  for (const bool handed_on : {false, true})
    for (std::size_t i = 0; i < tiles.size(); ++i) {
      const Buffer& buffer = listing.buffers[i];
      if (buffer.kind == Buffer::Kind::state || (buffer.memory >= 0) != handed_on) continue;
      tiles[i] = handed_on ? Tile::in(tiles[buffer.memory], buffer.region.extent, buffer.dtype)
                           : Tile(runtime, buffer.region.extent, buffer.dtype);
    }
  for (std::size_t i = 0; i < tiles.size(); ++i) {
    const Buffer& buffer = listing.buffers[i];
    operands.push_back(buffer.kind == Buffer::Kind::state ? &store->tiles.at({buffer.tensor, buffer.tile})
                                                          : &tiles[i]);
  }
  // Memory stays with the program, from buffer to buffer and from run to run: it is what the listing says, and nobody has to
  // ask for it again.
  std::erase_if(listing.instructions,
                [](const Instruction& instruction) { return instruction.kind == Instruction::Kind::drop; });
  if (runtime.rank() == 0) {
    Layout layout = store->layout(options);
    for (const Tensor& tensor : options.outputs) {
      Result::State::Output& output = outputs[tensor.id()];
      output.extents = layout.extents(tensor.axes());
      output.values.resize(product(output.extents));
      output.missing_tiles = layout.tiles(tensor.axes());
    }
  }
  if (std::ranges::any_of(listing.instructions, &Instruction::in_turn)) turn.emplace();
  std::vector<const char*> labels;
  for (const Node& node : listing.nodes)
    labels.push_back(keep(node.scope + std::string(node.semantics->name)));
  if (detail::Trace* trace = detail::Trace::current()) enter(*trace);
  for (std::size_t i = 0; i < listing.instructions.size(); ++i) {
    const Instruction& instruction = listing.instructions[i];
    if (instruction.kind != Instruction::Kind::task) continue;
    const TaskSpec& spec = instruction.spec;
    std::vector<const Tile*> list;
    for (int buffer : instruction.buffers) list.push_back(buffer < 0 ? nullptr : operands[buffer]);
    submit::TaskOptions task{.priority = instruction.priority,
                             .label = trace_labels.empty() ? labels[instruction.node] : trace_labels[i],
                             .turn = instruction.in_turn ? &*turn : nullptr};
    Task made{{*spec.op, spec.dtype, spec.attributes.data(), list, task}, {}};
    for (const Scalar& scalar : spec.op->scalars)
      made.patches.push_back({scalar.name, scalar.offset, scalar.optional});
    tasks.push_back(std::move(made));
  }
  name_received(labels);
}

// What a message into the buffer brings.
std::string Program::State::brought(const Buffer& buffer) const {
  std::string what =
      "tile " + std::to_string(buffer.tile) + " of " + store->graph->tensor(buffer.tensor).name();
  if (buffer.micro_batch >= 0) what += " (micro-batch " + std::to_string(buffer.micro_batch) + ")";
  return what;
}

// Of a tensor that a layer has made or owns: the layer's scope, as its name has it.
std::string scope_in_name(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string::npos ? name + "." : name.substr(0, dot + 1);
}

// The label of a task in a trace, LAYER.OP[TILE]#MICRO-BATCH: see docs/traces.md. The tile is that of its first result, by its
// place along each axis.
std::string Program::State::trace_label(const Instruction& instruction, const Layout& layout,
                                        const std::map<int, std::string>& layers) const {
  int result = -1, micro_batch = -1;
  std::string label;
  if (instruction.kind == Instruction::Kind::task) {
    const OpInfo& op = *instruction.spec.op;
    std::size_t next = 0;
    for (int i = 0; i < static_cast<int>(op.operands.size()) && next < instruction.buffers.size(); ++i) {
      if (op.operands[i].access == Access::scratch) continue;
      const int buffer = instruction.buffers[next++];
      if (buffer < 0) continue;
      const Access access = op.access(instruction.spec.attributes.data(), i);
      if (result < 0 && (access == Access::write || access == Access::read_write)) result = buffer;
      if (micro_batch < 0) micro_batch = listing.buffers[buffer].micro_batch;
    }
    const Node& node = listing.nodes[instruction.node];
    label = node.scope;
    if (result >= 0 && listing.buffers[result].kind == Buffer::Kind::state &&
        label == std::string(update_scope) + ".")
      if (const auto layer = layers.find(listing.buffers[result].tensor); layer != layers.end())
        label += layer->second;
    label += node.semantics->name;
  } else {
    result = instruction.buffers[0];
    micro_batch = listing.buffers[result].micro_batch;
    label = scope_in_name(store->graph->tensor(listing.buffers[result].tensor).name());
    label += instruction.kind == Instruction::Kind::fill ? "input" : "output";
  }
  for (char& c : label)  // what would end the name in StarPU's files
    if (c == '"' || static_cast<unsigned char>(c) < ' ') c = '_';
  std::string place;
  if (result >= 0) {
    const Axes& axes = store->graph->tensor(listing.buffers[result].tensor).axes();
    std::int64_t tile = listing.buffers[result].tile;
    for (std::size_t i = axes.size(); i-- > 0; tile /= layout.tiles(axes[i])) {
      if (!place.empty()) place.insert(0, ",");
      place.insert(0, std::to_string(tile % layout.tiles(axes[i])));
    }
  }
  label += "[" + place + "]";
  if (micro_batch >= 0) label += "#" + std::to_string(micro_batch);
  return label;
}

// Tells the trace what it will see of this program.
void Program::State::enter(detail::Trace& trace) {
  trace_number = trace.add_program({{"updates", options.updates},
                                    {"tasks", listing.tasks},
                                    {"flops", listing.flops},
                                    {"sent_bytes", listing.sent_bytes},
                                    {"received_bytes", listing.received_bytes},
                                    {"peak_bytes", listing.peak_bytes}});
  const Layout layout = store->layout(options);
  std::map<int, std::string> layers;  // whose state it is, by tensor: who reads it first
  for (const Node& node : store->graph->nodes())
    if (!node.scope.starts_with(gradient_scope) && !node.scope.starts_with(update_scope))
      for (const Tensor& x : node.inputs)
        if (x) layers.try_emplace(x.id(), node.scope);
  for (const Instruction& instruction : listing.instructions) {
    using Kind = Instruction::Kind;
    const bool message = instruction.kind == Kind::send || instruction.kind == Kind::receive;
    trace_labels.push_back(message ? nullptr : keep(trace_label(instruction, layout, layers)));
    if (instruction.kind == Kind::receive)
      trace.name_message(trace_number, tile(instruction).handle(), first_tag + instruction.tag,
                         brought(listing.buffers[instruction.buffers[0]]));
  }
}

// Says of each message which tile it brings, of which micro-batch, and what needs it first.
void Program::State::name_received(std::span<const char* const> labels) {
  std::vector<std::string> reader(listing.buffers.size());  // the first one behind the instruction looked at
  for (std::size_t i = listing.instructions.size(); i-- > 0;) {
    const Instruction& instruction = listing.instructions[i];
    switch (instruction.kind) {
      case Instruction::Kind::task:
        for (int buffer : instruction.buffers)
          if (buffer >= 0) reader[buffer] = labels[instruction.node];
        break;
      case Instruction::Kind::send:
        reader[instruction.buffers[0]] = "rank " + std::to_string(instruction.peer);
        break;
      case Instruction::Kind::fetch:
        reader[instruction.buffers[0]] = "the output";
        break;
      case Instruction::Kind::receive: {
        const Buffer& buffer = listing.buffers[instruction.buffers[0]];
        received.push_back(keep(brought(buffer) + ", for " + reader[instruction.buffers[0]]));
        break;
      }
      case Instruction::Kind::fill:
      case Instruction::Kind::turn:
      case Instruction::Kind::drop:
        break;
    }
  }
  std::ranges::reverse(received);
}

void Program::State::fetch(const Instruction& instruction, const char* label,
                           const std::shared_ptr<Result::State>& result) const {
  auto arrival = std::make_shared<Arrival>([result] {
    std::lock_guard lock(result->mutex);
    result->lost = true;
    result->arrived.notify_all();
  });
  // By value: the result may outlive the program.
  submit::visit(tile(instruction),
                [buffer = listing.buffers[instruction.buffers[0]], result, arrival](const void* data) {
                  arrival->arrived();
                  std::lock_guard lock(result->mutex);
                  Result::State::Output& output = result->outputs.at(buffer.tensor);
                  if (!Runtime::simulated())
                    visit_dtype(buffer.dtype, [&]<class T>() {
                      place_block(static_cast<const T*>(data), buffer.region, output.extents,
                                  output.values.data());
                    });
                  if (--output.missing_tiles == 0) result->arrived.notify_all();
                },
                {.label = label});
}

Program::Program(std::unique_ptr<State> state) : state_(std::move(state)) {}
Program::Program(Program&&) noexcept = default;
Program& Program::operator=(Program&&) noexcept = default;
Program::~Program() = default;

Program& Program::bind(const Tensor& input, Filler filler) {
  if (input.info().kind != TensorInfo::Kind::input)
    throw std::invalid_argument("[bind] " + input.describe() + " is not an input of the graph");
  state_->fillers[input.id()] = std::move(filler);
  return *this;
}

template <class T>
Program& Program::bind(const Tensor& input, std::vector<T> values) {
  std::vector<std::int64_t> extents = state_->store->layout(state_->options).extents(input.axes());
  std::int64_t elements = product(extents);
  if (input.dtype() != dtype_of<T> || static_cast<std::int64_t>(values.size()) != elements)
    throw std::invalid_argument("[bind] " + input.describe() + " takes " + std::to_string(elements) +
                                " values of its dtype, got " + std::to_string(values.size()) + " of " +
                                std::string(name_of(dtype_of<T>)));
  auto shared = std::make_shared<const std::vector<T>>(std::move(values));
  return bind(input, [shared, extents](const TileRegion& region, void* data) {
    take_block(shared->data(), extents, region, static_cast<T*>(data));
  });
}
template Program& Program::bind(const Tensor&, std::vector<float>);
template Program& Program::bind(const Tensor&, std::vector<double>);
template Program& Program::bind(const Tensor&, std::vector<std::int32_t>);

// On all ranks alike, also on those that read none of an input, so that no rank is left waiting for one that has thrown.
void Program::State::check_inputs() const {
  auto check = [&](const std::vector<Tensor>& tensors) {
    for (const Tensor& x : tensors)
      if (x && x.info().kind == TensorInfo::Kind::input && !fillers.contains(x.id()))
        throw std::invalid_argument("[run] the input " + x.describe() + " is not bound");
  };
  for (const Node& node : listing.nodes) check(node.inputs);
  check(options.outputs);
}

Result Program::run(const Scalars& scalars) {
  State& s = *state_;
  s.store->check_moved("run");
  Runtime& runtime = *s.store->runtime;
  const std::int64_t step = s.store->updates + (s.options.updates ? 1 : 0);
  auto scalar = [&](const State::Patch& patch) -> std::optional<double> {
    for (const auto& [given, value] : scalars)
      if (given == patch.scalar) return value;
    if (patch.scalar == "step") return static_cast<double>(std::max<std::int64_t>(step, 1));
    if (patch.optional) return std::nullopt;
    const std::string name(patch.scalar);
    throw std::invalid_argument("[run] the scalar \"" + name + "\" is missing: run({{\"" + name +
                                "\", value}})");
  };
  // All that can be wrong is found before anything is submitted.
  s.check_inputs();
  for (const State::Task& task : s.tasks)
    for (const State::Patch& patch : task.patches) scalar(patch);
  s.store->updates = step;
  runtime.wait_until_pending(static_cast<int>(2 * s.listing.instructions.size()));

  Result result;
  result.state_ = std::make_shared<Result::State>();
  result.state_->runtime = &runtime;
  result.state_->outputs = s.outputs;
  const detail::Trace::Run traced(detail::Trace::current(), s.trace_number, s.options.updates ? step : 0);
  std::uint64_t sequence = s.store->next_sequence;
  s.store->next_sequence += s.listing.nodes.size();
  std::size_t next_task = 0, next_receive = 0;
  std::vector<submit::ScalarValue> values;
  for (std::size_t i = 0; i < s.listing.instructions.size(); ++i) {
    const Instruction& instruction = s.listing.instructions[i];
    const char* label = s.trace_labels.empty() ? nullptr : s.trace_labels[i];
    switch (instruction.kind) {
      case Instruction::Kind::task: {
        const State::Task& task = s.tasks[next_task++];
        values.clear();
        for (const State::Patch& patch : task.patches)
          if (const std::optional<double> value = scalar(patch)) values.push_back({patch.offset, *value});
        task.prepared.submit(sequence + instruction.node, values);
        break;
      }
      case Instruction::Kind::fill: {
        const Buffer& buffer = s.listing.buffers[instruction.buffers[0]];
        submit::fill(s.tile(instruction),
                     [write = s.fillers.at(buffer.tensor), region = buffer.region](void* data) {
                       write(region, data);
                     },
                     {.priority = instruction.priority, .label = label});
        break;
      }
      case Instruction::Kind::send:
        submit::send(runtime, s.tile(instruction), instruction.peer, s.first_tag + instruction.tag,
                     instruction.priority);
        break;
      case Instruction::Kind::receive:
        submit::receive(runtime, s.tile(instruction), instruction.peer, s.first_tag + instruction.tag,
                        s.received[next_receive++]);
        break;
      case Instruction::Kind::fetch:
        s.fetch(instruction, label, result.state_);
        break;
      case Instruction::Kind::turn:
        s.turn->next();
        break;
      case Instruction::Kind::drop:  // memory is not given back: see prepare()
        break;
    }
  }
  return result;
}

Program Program::sibling(const CompileOptions& options) const {
  state_->store->check_moved("sibling");
  auto state = std::make_unique<State>();
  state->store = state_->store;
  state->options = options;
  Store& store = *state->store;
  state->listing = lower(*store.graph, store.plan, store.runtime->rank(), store.runtime->size(), options);
  state->prepare();
  return Program(std::move(state));
}

Program Program::move_to(const Plan& plan, const CompileOptions& options) {
  state_->store->check_moved("move");
  Graph& graph = *state_->store->graph;
  Runtime& runtime = *state_->store->runtime;
  auto state = std::make_unique<State>();
  state->options = options;
  state->listing = lower(graph, plan, runtime.rank(), runtime.size(), options);  // refuses a bad plan first
  state->store = std::make_shared<Store>(*state_->store, plan);
  state->prepare();
  return Program(std::move(state));
}

std::vector<double> Program::read(const Tensor& state) const { return state_->store->read(state); }
void Program::write(const Tensor& state, std::span<const double> values) {
  state_->store->write(state, values);
}
std::int64_t Program::visit(const Tensor& state,
                            const std::function<void(const TileRegion&, const void*)>& look) const {
  return state_->store->visit(state, look);
}
void Program::fill(const Tensor& state, const Filler& filler) { state_->store->fill(state, filler); }

std::int64_t Program::updates() const { return state_->store->updates; }
void Program::updates(std::int64_t count) {
  if (count < 0)
    throw std::invalid_argument("[updates] a number of runs is not negative, got " + std::to_string(count));
  state_->store->updates = count;
}

Runtime& Program::runtime() const { return *state_->store->runtime; }
const Listing& Program::listing() const { return state_->listing; }

std::int64_t Program::peak_bytes() const {
  const Runtime& r = runtime();
  return listing().peak_bytes + (r.cpu_workers() + r.gpus()) * listing().scratch_bytes;
}

std::string Program::report() const {
  Runtime& runtime = *state_->store->runtime;
  const Listing& l = state_->listing;
  constexpr int columns = 6;
  std::vector<double> all(static_cast<std::size_t>(runtime.size()) * columns, 0);
  double mine[columns] = {static_cast<double>(l.tasks),       l.flops,
                          static_cast<double>(l.sent_bytes),  static_cast<double>(l.received_bytes),
                          static_cast<double>(l.state_bytes), static_cast<double>(peak_bytes())};
  std::copy_n(mine, columns, all.begin() + static_cast<std::ptrdiff_t>(runtime.rank()) * columns);
  runtime.sum_over_ranks(all.data(), static_cast<int>(all.size()));
  std::string text =
      "rank    tasks      Gflop    sent MB  received MB   state MB    peak MB   (per step, predicted)\n";
  for (int rank = 0; rank < runtime.size(); ++rank) {
    const double* row = all.data() + static_cast<std::ptrdiff_t>(rank) * columns;
    char line[128];
    std::snprintf(line, sizeof line, "%4d %8.0f %10.3f %10.3f %12.3f %10.3f %10.3f\n", rank, row[0],
                  row[1] * 1e-9, row[2] * 1e-6, row[3] * 1e-6, row[4] * 1e-6, row[5] * 1e-6);
    text += line;
  }
  return text;
}

Program compile(Graph& graph, const Plan& plan, Runtime& runtime, const CompileOptions& options) {
  auto state = std::make_unique<Program::State>();
  state->store = std::make_shared<Store>(graph, plan, runtime);
  state->options = options;
  state->listing = lower(graph, plan, runtime.rank(), runtime.size(), options);
  state->prepare();
  return Program(std::move(state));
}

}  // namespace tegula
