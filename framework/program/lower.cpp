// From graph and plan to the listing of one rank. The walk visits every task of every rank in the same order on all of
// them, so that ranks agree on messages and their tags without talking; each keeps what concerns it.
#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <stdexcept>

#include "framework/program/listing.hpp"
#include "kernels/reduce.hpp"

namespace tegula {

std::int64_t Buffer::bytes() const {
  return std::accumulate(region.extent.begin(), region.extent.end(),
                         static_cast<std::int64_t>(size_of(dtype)), std::multiplies<>());
}

namespace {

// The nodes that outputs and updates need, in order, as copies.
std::vector<Node> live_nodes(const Graph& graph, const CompileOptions& options) {
  std::vector<char> needed(graph.tensors().size(), 0);
  for (const Tensor& output : options.outputs) needed[output.id()] = 1;
  std::vector<Node> live;
  for (std::size_t i = graph.nodes().size(); i-- > 0;) {
    const Node& node = graph.nodes()[i];
    bool wanted = node.outputs.empty()
                      ? options.updates
                      : std::ranges::any_of(node.outputs, [&](const Tensor& y) { return needed[y.id()]; });
    if (!wanted) continue;
    for (const Tensor& x : node.inputs)
      if (x) needed[x.id()] = 1;
    live.push_back(node);
  }
  std::ranges::reverse(live);
  return live;
}

// Ops that need an axis whole which the plan cuts are replaced by their expansion.
std::vector<Node> expand(Graph& graph, std::vector<Node> nodes, const Layout& layout) {
  std::vector<Node> result;
  for (Node& node : nodes) {
    Axes cut;
    if (node.semantics->whole)
      for (const Axis& axis : node.semantics->whole(node))
        if (layout.tiles(axis) > 1) cut.push_back(axis);
    if (cut.empty()) {
      result.push_back(std::move(node));
      continue;
    }
    std::string op(node.semantics->name);
    if (!node.semantics->expand)
      throw std::invalid_argument("[" + op + "] needs axis " + cut[0].name() +
                                  " in one tile, but the plan cuts its extent " +
                                  std::to_string(layout.extent(cut[0])) + " into tiles of " +
                                  std::to_string(layout.tile_size(cut[0])) + "; leave the axis whole");
    auto first = static_cast<int>(graph.nodes().size());
    std::vector<Tensor> outputs = node.semantics->expand(node);
    std::vector<Node> parts = graph.take_nodes_from(first);
    for (Node& part : parts) {
      part.scope = node.scope;
      for (std::size_t i = 0; i < outputs.size(); ++i) {  // the parts' results stand for the node's own
        std::ranges::replace(part.inputs, outputs[i], node.outputs[i]);
        std::ranges::replace(part.outputs, outputs[i], node.outputs[i]);
      }
    }
    std::ranges::move(expand(graph, std::move(parts), layout), std::back_inserter(result));
  }
  return result;
}

// Of each node. Gradients by inputs are those that the gradients of another stage are computed from.
std::vector<Pass> passes(const std::vector<Node>& nodes, const Layout& layout) {
  std::vector<Pass> result(nodes.size(), Pass::forward);
  std::set<int> waited_for;  // tensors
  for (std::size_t i = nodes.size(); i-- > 0;) {
    const Node& node = nodes[i];
    if (!node.scope.starts_with(gradient_scope) || node.outputs.empty()) continue;
    const bool waited =
        std::ranges::any_of(node.outputs, [&](const Tensor& y) { return waited_for.contains(y.id()); });
    result[i] = waited ? Pass::input_gradient : Pass::weight_gradient;
    for (const Tensor& x : node.inputs)
      if (x && (waited || layout.stage(x) != layout.stage(node.outputs[0]))) waited_for.insert(x.id());
  }
  return result;
}

// One tuple of tiles of a node's axes.
class Tuple final : public TileRange {
 public:
  Tuple(const Layout& layout, const Axes& axes) : layout_(layout), axes_(axes), index_(axes.size()) {}

  // Sets the tiles of the axes from `offset` on from a row-major index.
  void set(std::size_t offset, std::size_t count, std::int64_t index) {
    for (std::size_t i = offset + count; i-- > offset;) {
      index_[i] = index % layout_.tiles(axes_[i]);
      index /= layout_.tiles(axes_[i]);
    }
  }
  void set_chain(bool first, bool last) { first_ = first, last_ = last; }

  // Of a pass of a stage on the micro-batch that the tiles are of; 0 where they are of none.
  double time(int stage, Pass pass) const {
    auto place = std::ranges::find_if(axes_, [&](const Axis& axis) { return layout_.is_micro_batch(axis); });
    return place == axes_.end() ? 0 : layout_.time(stage, index_[place - axes_.begin()], pass);
  }

  std::int64_t tile(const Axis& axis) const { return index_[std::ranges::find(axes_, axis) - axes_.begin()]; }
  std::int64_t tile_of(const Axes& axes) const {  // row-major, among the tiles of a tensor with these axes
    std::int64_t linear = 0;
    for (const Axis& axis : axes) linear = linear * layout_.tiles(axis) + tile(axis);
    return linear;
  }
  std::int64_t begin(const Axis& axis) const override { return tile(axis) * layout_.tile_size(axis); }
  std::int64_t extent(const Axis& axis) const override {
    return std::min(layout_.tile_size(axis), layout_.extent(axis) - begin(axis));
  }
  std::int64_t full_extent(const Axis& axis) const override { return layout_.extent(axis); }
  bool first() const override { return first_; }
  bool last() const override { return last_; }

 private:
  const Layout& layout_;
  const Axes& axes_;
  std::vector<std::int64_t> index_;
  bool first_ = true, last_ = true;
};

class Lowering {
 public:
  Lowering(const Layout& layout, std::vector<Pass> passes, int rank, Listing& listing)
      : layout_(layout), passes_(std::move(passes)), rank_(rank), listing_(listing) {}

  void node(int index);
  void output(const Tensor& tensor);
  void finish(const std::vector<Tensor>& outputs);

 private:
  // Contents of one tile, or of a partial sum: written on `home`, copied to ranks that read it.
  struct Value {
    const TensorInfo* info;
    int tensor;
    std::int64_t tile;
    int home;
    std::set<int> delivered;
    std::vector<int> receivers;          // the same in their order
    int buffer = -1;                     // on this rank
    double written_at = 0, read_at = 0;  // latest times
  };

  Value& value(const Tensor& tensor, std::int64_t tile);
  int add_buffer(const Value& value, Buffer::Kind kind);
  void read(Value& value, int rank);
  void write(Value& value, int rank);
  void emit(int node, double time, TaskSpec spec, std::span<Value* const> operands);
  double time(double own, std::span<Value* const> read, std::span<Value* const> written);
  void combine(int node, Combine how, Value& left, Value& right, Value& into);
  void update(int index, Tuple& tuple);
  void one_task(int index, Tuple& tuple, int rank, std::span<Value* const> written);
  void prioritize();
  void drop_after_last_use();

  const Layout& layout_;
  std::vector<Pass> passes_;  // by node
  int rank_;
  Listing& listing_;
  std::map<std::pair<int, std::int64_t>, Value> values_;
  std::int64_t next_tag_ = 0;
};

Lowering::Value& Lowering::value(const Tensor& tensor, std::int64_t tile) {
  auto [place, added] = values_.try_emplace({tensor.id(), tile});
  if (added) place->second = {&tensor.info(), tensor.id(), tile, layout_.owner(tensor, tile), {}};
  return place->second;
}

int Lowering::add_buffer(const Value& value, Buffer::Kind kind) {
  listing_.buffers.push_back({kind, value.tensor, static_cast<int>(value.tile), value.info->dtype,
                              layout_.region(value.info->axes, value.tile),
                              layout_.micro_batch(value.info->axes, value.tile)});
  return static_cast<int>(listing_.buffers.size()) - 1;
}

// Makes the value readable on `rank`: inputs are filled where they are read, others travel from home, once, down a binomial
// tree of those that ask for it, so that no rank sends it more often than the logarithm of their number.
void Lowering::read(Value& value, int rank) {
  if (value.info->kind == TensorInfo::Kind::input) {
    if (rank != rank_ || value.buffer >= 0) return;
    value.buffer = add_buffer(value, Buffer::Kind::input);
    listing_.instructions.push_back({.kind = Instruction::Kind::fill, .buffers = {value.buffer}});
    return;
  }
  if (rank == value.home) {
    if (rank == rank_ && value.buffer < 0) value.buffer = add_buffer(value, Buffer::Kind::state);
    return;
  }
  if (!value.delivered.insert(rank).second) return;
  value.receivers.push_back(rank);
  const std::size_t number = value.receivers.size(), parent = number & (number - 1);  // home is number 0
  const int from = parent == 0 ? value.home : value.receivers[parent - 1];
  std::int64_t tag = next_tag_++;
  if (rank_ == from) {
    if (from == value.home) read(value, rank_);
    listing_.instructions.push_back({.kind = Instruction::Kind::send,
                                     .buffers = {value.buffer},
                                     .peer = rank,
                                     .tag = tag,
                                     .time = value.written_at});
  } else if (rank_ == rank) {
    value.buffer = add_buffer(value, Buffer::Kind::replica);
    listing_.instructions.push_back({.kind = Instruction::Kind::receive,
                                     .buffers = {value.buffer},
                                     .peer = from,
                                     .tag = tag,
                                     .time = value.written_at});
  }
}

// The value is (re)written on `rank`, which becomes its home; copies elsewhere are stale.
void Lowering::write(Value& value, int rank) {
  value.home = rank;
  value.delivered.clear();
  value.receivers.clear();
  if (rank != rank_)
    value.buffer = -1;
  else if (value.buffer < 0)
    value.buffer = add_buffer(
        value, value.info->kind == TensorInfo::Kind::state ? Buffer::Kind::state : Buffer::Kind::value);
}

// Of a task: its own, or the latest of those that it has to come after. Remembers it for those behind it.
double Lowering::time(double own, std::span<Value* const> read, std::span<Value* const> written) {
  for (const Value* x : read)
    if (x) own = std::max(own, x->written_at);
  for (const Value* y : written) own = std::max({own, y->written_at, y->read_at});
  for (Value* x : read)
    if (x) x->read_at = std::max(x->read_at, own);
  for (Value* y : written) y->written_at = own;
  return own;
}

void Lowering::emit(int index, double time, TaskSpec spec, std::span<Value* const> operands) {
  Instruction task{.kind = Instruction::Kind::task, .node = index, .spec = std::move(spec)};
  task.time = time;
  for (Value* operand : operands) task.buffers.push_back(operand ? operand->buffer : -1);
  listing_.instructions.push_back(std::move(task));
}

// Runs the node's task for the tuple on `rank`: brings the inputs there, writes the outputs.
void Lowering::one_task(int index, Tuple& tuple, int rank, std::span<Value* const> written) {
  const Node& node = listing_.nodes[index];
  TaskSpec spec = node.semantics->task(node, tuple);
  std::vector<Value*> operands;
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    const Tensor& x = node.inputs[i];
    // A bias, say, is of use only to the last task of a chain.
    bool used = x && spec.op->has(spec.attributes.data(), static_cast<int>(i));
    operands.push_back(used ? &value(x, tuple.tile_of(node.axes(i))) : nullptr);
    if (used) read(*operands.back(), rank);
  }
  const double when = time(tuple.time(layout_.stage(node.outputs[0]), passes_[index]), operands, written);
  for (Value* y : written) {
    write(*y, rank);
    operands.push_back(y);
  }
  if (rank == rank_) emit(index, when, std::move(spec), operands);
}

// left += right, in that order, where less has to travel.
void Lowering::combine(int index, Combine how, Value& left, Value& right, Value& into) {
  int owner = layout_.owner(listing_.nodes[index].outputs[0], into.tile);
  Value &kept = right.home == owner && left.home != owner ? right : left,
        &read_one = &kept == &left ? right : left;
  int rank = kept.home;
  read(read_one, rank);
  Value *const from[] = {&read_one}, *const to[] = {&kept};
  const double when = time(0, from, to);
  if (rank == rank_) {
    Buffer& buffer = listing_.buffers[kept.buffer];
    Reduce reduce{};
    reduce.kind = how == Combine::max           ? Reduce::Kind::max
                  : how == Combine::log_sum_exp ? Reduce::Kind::log_sum_exp
                                                : Reduce::Kind::sum;
    reduce.rank = 1;
    reduce.extent[0] = static_cast<int>(buffer.bytes() / static_cast<std::int64_t>(size_of(buffer.dtype)));
    reduce.scale = 1;
    reduce.accumulate = true;
    listing_.instructions.push_back({.kind = Instruction::Kind::task,
                                     .node = index,
                                     .spec = TaskSpec::of(reduce, buffer.dtype),
                                     .buffers = {read_one.buffer, kept.buffer},
                                     .time = when});
  }
  into.home = kept.home;
  into.buffer = kept.buffer;
  into.written_at = when;
  into.delivered.clear();
  into.receivers.clear();
}

void Lowering::update(int index, Tuple& tuple) {
  const Node& node = listing_.nodes[index];
  TaskSpec spec = node.semantics->task(node, tuple);
  std::vector<Value*> operands, changed;
  int owner = -1;
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    const Tensor& x = node.inputs[i];
    operands.push_back(x ? &value(x, tuple.tile_of(x.axes())) : nullptr);
    if (!x || spec.op->operands[i].access != Access::read_write) continue;
    if (owner < 0) owner = layout_.owner(x, operands.back()->tile);
    changed.push_back(operands.back());
  }
  for (Value* operand : operands)
    if (operand) read(*operand, owner);
  const double when = time(0, operands, changed);
  for (Value* state : changed) write(*state, owner);
  if (owner == rank_) emit(index, when, std::move(spec), operands);
}

void Lowering::node(int index) {
  const Node& node = listing_.nodes[index];
  bool updates_state = node.outputs.empty();
  const Axes& written = node.axes(updates_state ? 0 : node.inputs.size());
  Axes axes = written, summed;
  for (std::size_t i = 0; i < node.inputs.size() + node.outputs.size(); ++i) {
    if (i < node.inputs.size() && !node.inputs[i]) continue;
    for (const Axis& axis : node.axes(i))  // of outputs: axes such as those of a convolution's
      if (std::ranges::find(axes, axis) == axes.end()) axes.push_back(axis), summed.push_back(axis);
  }

  Tuple tuple(layout_, axes);
  std::int64_t chain = layout_.tiles(summed);
  std::int64_t group = node.semantics->chain ? chain : layout_.group_size(summed);
  Combine how = node.semantics->combine ? node.semantics->combine(node) : Combine::sum;
  for (std::int64_t tile = 0; tile < layout_.tiles(written); ++tile) {
    tuple.set(0, written.size(), tile);
    tuple.set(written.size(), summed.size(), 0);
    if (updates_state) {
      update(index, tuple);
      continue;
    }
    // A chain within each group runs where the group's first tiles of the summed axes are ...
    std::vector<Value*> outputs;
    for (const Tensor& y : node.outputs) outputs.push_back(&value(y, tile));
    std::deque<Value> partial;
    bool any = false;
    for (std::int64_t begin = 0; begin < chain; begin += group) {
      std::vector<std::int64_t> links;
      for (std::int64_t i = begin; i < std::min(begin + group, chain); ++i) {
        tuple.set(written.size(), summed.size(), i);
        if (!node.semantics->skip || !node.semantics->skip(node, tuple)) links.push_back(i);
      }
      if (links.empty() && (any || begin + group < chain)) continue;
      if (links.empty()) links.push_back(begin);  // nothing contributes, but the output has to be written
      any = true;
      tuple.set(written.size(), summed.size(), begin);
      int rank = layout_.owner(node.outputs[0], tile);
      for (const Axis& axis : summed)
        if (!node.semantics->chain) rank = layout_.moved(rank, node.outputs[0], axis, tuple.tile(axis));
      if (group < chain) outputs = {&partial.emplace_back(value(node.outputs[0], tile))};
      for (std::int64_t i : links) {
        tuple.set(written.size(), summed.size(), i);
        tuple.set_chain(i == links.front(), i == links.back());
        one_task(index, tuple, rank, outputs);
      }
    }
    // ... and the groups come together in a balanced binary tree.
    std::vector<Value*> level;
    for (Value& sum : partial) level.push_back(&sum);
    while (level.size() > 1) {
      std::vector<Value*> next;
      for (std::size_t i = 0; i + 1 < level.size(); i += 2) {
        combine(index, how, *level[i], *level[i + 1], *level[i]);
        next.push_back(level[i]);
      }
      if (level.size() % 2) next.push_back(level.back());
      level = std::move(next);
    }
    if (!level.empty()) value(node.outputs[0], tile) = *level[0];
  }
}

void Lowering::output(const Tensor& tensor) {
  for (std::int64_t tile = 0; tile < layout_.tiles(tensor.axes()); ++tile) {
    Value& v = value(tensor, tile);
    read(v, 0);
    if (rank_ == 0)
      listing_.instructions.push_back(
          {.kind = Instruction::Kind::fetch, .buffers = {v.buffer}, .time = v.written_at});
  }
}

void Lowering::finish(const std::vector<Tensor>& outputs) {
  std::set<int> brought;
  for (const Tensor& tensor : outputs)
    if (brought.insert(tensor.id()).second) output(tensor);
  // As the schedule says; what it does not tell apart stays as it is. Nothing comes before what it needs.
  std::ranges::stable_sort(listing_.instructions, {}, &Instruction::time);
  prioritize();
  drop_after_last_use();
}

// Priority: the work, in units of 100 kflop, on the longest path from the task to the end of the step. What is sent comes
// first, as another rank waits for it.
void Lowering::prioritize() {
  constexpr double unit = 1e5, waited_for = 1e6;
  constexpr double ahead = 1 << 22;  // beyond the paths of a step
  int turn = 0;                      // of the times that there are
  for (std::size_t i = 1; i < listing_.instructions.size(); ++i)
    turn += listing_.instructions[i].time > listing_.instructions[i - 1].time;
  // By buffer: from the tasks that read its present contents.
  std::vector<double> path(listing_.buffers.size(), 0);
  for (std::size_t i = listing_.instructions.size(); i-- > 0;) {
    Instruction& instruction = listing_.instructions[i];
    double longest = instruction.kind == Instruction::Kind::send ? waited_for : 0;
    if (instruction.kind == Instruction::Kind::task) {
      const TaskSpec& spec = instruction.spec;
      int operand = 0;
      for (const OperandInfo& info : spec.op->operands) {
        if (info.access == Access::scratch) continue;
        int buffer = instruction.buffers[operand];
        Access mode = spec.op->access(spec.attributes.data(), operand++);
        if (buffer < 0 || mode == Access::read) continue;
        longest = std::max(longest, path[buffer]);
        if (mode == Access::write) path[buffer] = 0;
      }
      longest += std::max(1.0, spec.op->flops(spec.attributes.data()) / unit);
    } else if (instruction.kind == Instruction::Kind::fill) {
      longest = path[instruction.buffers[0]] + 1;
    }
    // What the schedule has earlier comes first: nothing later matters before.
    constexpr double least = std::numeric_limits<int>::min();
    instruction.priority = static_cast<int>(std::max(longest - turn * ahead, least));
    if (i > 0) turn -= instruction.time > listing_.instructions[i - 1].time;
    for (int buffer : instruction.buffers)
      if (buffer >= 0) path[buffer] = std::max(path[buffer], longest);
  }
}

// Drops each buffer after its last use, and adds up the predictions.
void Lowering::drop_after_last_use() {
  std::vector<std::size_t> last_use(listing_.buffers.size(), 0);
  for (std::size_t i = 0; i < listing_.instructions.size(); ++i)
    for (int buffer : listing_.instructions[i].buffers)
      if (buffer >= 0) last_use[buffer] = i;

  std::vector<Instruction> with_drops;
  std::vector<char> live(listing_.buffers.size(), 0);
  std::int64_t current = 0;
  // Buffers with memory that others may take over, the one that is free the longest first.
  std::map<std::pair<int, std::vector<std::int64_t>>, std::deque<int>> free;
  auto key = [&](int b) {
    const Buffer& buffer = listing_.buffers[b];
    // Whatever is recomputed, of any layer, so that none is before its gradients need it.
    const int pool =
        layout_.is_recomputed(buffer.tensor) ? -1 - static_cast<int>(buffer.dtype) : buffer.tensor;
    return std::pair(pool, buffer.region.extent);
  };
  for (std::size_t i = 0; i < listing_.instructions.size(); ++i) {
    Instruction& instruction = listing_.instructions[i];
    std::vector<int> used = instruction.buffers;
    for (int b : used) {
      if (b < 0 || live[b] || listing_.buffers[b].kind == Buffer::Kind::state) continue;
      live[b] = 1;
      current += listing_.buffers[b].bytes();
      if (auto place = free.find(key(b)); place != free.end() && !place->second.empty()) {
        listing_.buffers[b].memory = place->second.front();
        place->second.pop_front();
      }
    }
    listing_.peak_bytes = std::max(listing_.peak_bytes, current);
    if (instruction.kind == Instruction::Kind::task) {
      ++listing_.tasks;
      listing_.flops += instruction.spec.op->flops(instruction.spec.attributes.data());
    } else if (instruction.kind == Instruction::Kind::send) {
      listing_.sent_bytes += listing_.buffers[used[0]].bytes();
    } else if (instruction.kind == Instruction::Kind::receive) {
      listing_.received_bytes += listing_.buffers[used[0]].bytes();
    }
    with_drops.push_back(std::move(instruction));
    for (int b : used) {
      if (b < 0 || last_use[b] != i || !live[b]) continue;
      live[b] = 0;
      current -= listing_.buffers[b].bytes();
      with_drops.push_back({.kind = Instruction::Kind::drop, .buffers = {b}});
      const Buffer& buffer = listing_.buffers[b];
      if (layout_.has_micro_batches(buffer.tensor) || layout_.is_recomputed(buffer.tensor))
        free[key(b)].push_back(buffer.memory < 0 ? b : buffer.memory);
    }
  }
  listing_.instructions = std::move(with_drops);
}

}  // namespace

Listing lower(Graph& graph, const Plan& plan, int rank, int ranks, const CompileOptions& options) {
  Layout layout(graph, plan, ranks, options);
  Listing listing;
  listing.nodes = expand(graph, live_nodes(graph, options), layout);
  if (plan.fuse()) fuse_epilogues(listing.nodes, layout, options.outputs);
  layout.learn(listing.nodes);  // what expansions have added
  // Last, so that what is recomputed is what was computed.
  listing.nodes = recompute(graph, listing.nodes, plan, layout, options.outputs);
  layout.learn(listing.nodes);

  Lowering lowering(layout, passes(listing.nodes, layout), rank, listing);
  for (int i = 0; i < static_cast<int>(listing.nodes.size()); ++i) lowering.node(i);
  lowering.finish(options.outputs);

  for (int id = 0; id < static_cast<int>(graph.tensors().size()); ++id) {
    Tensor tensor = graph.tensor(id);
    if (tensor.info().kind != TensorInfo::Kind::state) continue;
    for (std::int64_t tile = 0; tile < layout.tiles(tensor.axes()); ++tile) {
      if (layout.owner(tensor, tile) != rank) continue;
      Buffer buffer{Buffer::Kind::state, id, static_cast<int>(tile), tensor.dtype(),
                    layout.region(tensor.axes(), tile)};
      listing.state_bytes += buffer.bytes();
    }
  }
  listing.peak_bytes += listing.state_bytes;
  return listing;
}

}  // namespace tegula
