// From graph and plan to the listing of one rank: its tasks, and the messages that go with them, node by node.
#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <stdexcept>

#include "framework/program/distribution.hpp"
#include "kernels/copy_box.hpp"
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

// The task that copies a part of a tile out of it.
TaskSpec cut_out(const Buffer& tile, const TileRegion& part) {
  CopyBox copy{.mode = CopyBox::Mode::fill, .value = 0};
  for (CopyBox::Index* extent : {&copy.src_extent, &copy.dst_extent, &copy.extent}) extent->fill(1);
  const std::size_t lead = CopyBox::axes - part.extent.size();
  for (std::size_t i = 0; i < part.extent.size(); ++i) {
    copy.src_extent[lead + i] = static_cast<std::int32_t>(tile.region.extent[i]);
    copy.src_begin[lead + i] = static_cast<std::int32_t>(part.begin[i]);
    copy.extent[lead + i] = copy.dst_extent[lead + i] = static_cast<std::int32_t>(part.extent[i]);
  }
  return TaskSpec::of(copy, tile.dtype);
}

class Lowering {
 public:
  Lowering(Graph& graph, const Layout& layout, const Distribution& distribution, int rank, Listing& listing)
      : graph_(graph),
        layout_(layout),
        distribution_(distribution),
        rank_(rank),
        listing_(listing),
        pending_(listing.nodes.size() + 1) {}

  void states();
  void node(int index);
  void outputs(const std::vector<Tensor>& tensors);

 private:
  int add_buffer(Buffer::Kind kind, int tensor, std::int64_t tile);
  int state(int tensor, std::int64_t tile);
  int read(int node, const Tensor& tensor, std::int64_t tile);
  int read_part(int index, Tuple& tuple);
  void pass_on(const Value& value, int buffer, std::span<const Distribution::Reader> readers,
               std::size_t number, int now = -1);
  void made(const Value& value, int buffer);
  void send_out(const Value& value, const std::function<int()>& buffer);
  int add_part(const Value& value, const TileRegion& part);
  void chain(int index, std::int64_t tile, std::int64_t group, const std::vector<int>& written);
  void add_up(int index, std::int64_t tile, std::map<std::int64_t, int> sums);
  void update(int index, std::int64_t tile);
  void append(int index);

  Graph& graph_;
  const Layout& layout_;
  const Distribution& distribution_;
  int rank_;
  Listing& listing_;
  std::map<Value, int> buffers_;                        // of values that this rank has
  std::map<std::pair<Value, TileRegion>, int> parts_;   // buffers of what this rank has been sent of tiles
  std::map<std::pair<int, std::int64_t>, int> states_;  // buffers of states, by tensor and tile
  std::vector<std::vector<Instruction>> pending_;       // messages, by the node that first reads them
  // What the present node adds. What arrives for it goes first, in the same order on all ranks, as they pass it on to each
  // other.
  std::map<Value, std::vector<Instruction>> arriving_;
  std::vector<Instruction> instructions_;
};

int Lowering::add_buffer(Buffer::Kind kind, int tensor, std::int64_t tile) {
  const TensorInfo& info = graph_.tensor(tensor).info();
  listing_.buffers.push_back({kind, tensor, static_cast<int>(tile), info.dtype,
                              layout_.region(info.axes, tile), layout_.micro_batch(info.axes, tile)});
  return static_cast<int>(listing_.buffers.size()) - 1;
}

int Lowering::state(int tensor, std::int64_t tile) {
  auto [known, added] = states_.try_emplace({tensor, tile});
  if (added) known->second = add_buffer(Buffer::Kind::state, tensor, tile);
  return known->second;
}

// A value goes down a binomial tree of its readers, so that no rank sends it more often than the logarithm of their number.
// Number 0 is its home; `number` passes it on to those who differ from it in one bit below its lowest.
void Lowering::pass_on(const Value& value, int buffer, std::span<const Distribution::Reader> readers,
                       std::size_t number, int now) {
  for (std::size_t bit = 1; (number & bit) == 0 && number + bit <= readers.size(); bit *= 2) {
    const Distribution::Reader& to = readers[number + bit - 1];
    Instruction send{.kind = Instruction::Kind::send, .buffers = {buffer}, .peer = to.rank};
    send.tag = distribution_.number(value);
    send.time = distribution_.written(value);
    (to.node > now ? pending_[to.node] : arriving_[value]).push_back(std::move(send));
  }
}

// This rank is the home of the value, which is in the buffer.
void Lowering::made(const Value& value, int buffer) {
  buffers_[value] = buffer;
  send_out(value, [&] { return buffer; });
}

void Lowering::send_out(const Value& value, const std::function<int()>& buffer) {
  if (const auto readers = distribution_.readers(value); !readers.empty())
    pass_on(value, buffer(), readers, 0);
  for (const Distribution::PartReader& reader : distribution_.part_readers(value)) {
    const int part = add_part(value, reader.part);
    const double time = distribution_.written(value);
    std::vector<Instruction>& messages = pending_[reader.node];
    messages.push_back({.kind = Instruction::Kind::task,
                        .node = reader.node,
                        .spec = cut_out(listing_.buffers[buffer()], reader.part),
                        .buffers = {buffer(), part},
                        .time = time});
    messages.push_back({.kind = Instruction::Kind::send,
                        .buffers = {part},
                        .peer = reader.rank,
                        .tag = reader.number,
                        .time = time});
  }
}

int Lowering::add_part(const Value& value, const TileRegion& part) {
  const int buffer = add_buffer(Buffer::Kind::part, value.tensor, value.tile);
  TileRegion& region = listing_.buffers[buffer].region;
  for (std::size_t i = 0; i < part.begin.size(); ++i) region.begin[i] += part.begin[i];
  region.extent = part.extent;
  return buffer;
}

// The buffer of what the task reads of a tile: that itself where it is, else what has been sent of it.
int Lowering::read_part(int index, Tuple& tuple) {
  const Tensor& x = listing_.nodes[index].inputs[0];
  const std::int64_t tile = distribution_.work(index).tile_of(0, tuple.index);
  const Value value = distribution_.read_by(index, x, tile);
  tuple.set_part(false);
  const int home = distribution_.home(value);
  if (x.info().kind == TensorInfo::Kind::input || home == rank_) return read(index, x, tile);
  tuple.set_part(true);
  const TileRegion part = listing_.nodes[index].semantics->part(listing_.nodes[index], tuple);
  auto [known, added] = parts_.try_emplace({value, part});
  if (!added) return known->second;
  known->second = add_part(value, part);
  arriving_[value].push_back({.kind = Instruction::Kind::receive,
                              .buffers = {known->second},
                              .peer = home,
                              .tag = distribution_.number(index, tuple),
                              .time = distribution_.written(value)});
  return known->second;
}

// State is sent from the start, to those who read it first, first.
void Lowering::states() {
  for (int id = 0; id < static_cast<int>(graph_.tensors().size()); ++id)
    if (const Tensor tensor = graph_.tensor(id); tensor.info().kind == TensorInfo::Kind::state)
      distribution_.for_each_tile(tensor, rank_, [&](std::int64_t tile) {
        send_out({id, tile}, [&] { return state(id, tile); });
        const Buffer buffer{.kind = Buffer::Kind::state,
                            .tensor = id,
                            .tile = static_cast<int>(tile),
                            .dtype = tensor.dtype(),
                            .region = layout_.region(tensor.axes(), tile)};
        listing_.state_bytes += buffer.bytes();
      });
}

// The buffer of what the node reads, brought here if it is not: inputs are filled where they are read.
int Lowering::read(int node, const Tensor& tensor, std::int64_t tile) {
  const Value value = distribution_.read_by(node, tensor, tile);
  if (auto known = buffers_.find(value); known != buffers_.end()) return known->second;
  int& buffer = buffers_[value];
  if (tensor.info().kind == TensorInfo::Kind::input) {
    buffer = add_buffer(Buffer::Kind::input, tensor.id(), tile);
    instructions_.push_back({.kind = Instruction::Kind::fill, .buffers = {buffer}});
    return buffer;
  }
  if (distribution_.home(value) == rank_) {
    if (tensor.info().kind != TensorInfo::Kind::state)
      throw std::logic_error("[compile] " + tensor.describe() + " is read before it is computed");
    return buffer = state(tensor.id(), tile);
  }
  buffer = add_buffer(Buffer::Kind::replica, tensor.id(), tile);
  const std::vector<Distribution::Reader> readers = distribution_.readers(value);
  const auto self = std::ranges::find(readers, rank_, &Distribution::Reader::rank);
  const std::size_t number = self - readers.begin() + 1, parent = number & (number - 1);
  arriving_[value].push_back({.kind = Instruction::Kind::receive,
                              .buffers = {buffer},
                              .peer = parent == 0 ? distribution_.home(value) : readers[parent - 1].rank,
                              .tag = distribution_.number(value),
                              .time = distribution_.written(value)});
  pass_on(value, buffer, readers, number, node);
  return buffer;
}

// The tasks of one group, which add to `written` one after the other.
void Lowering::chain(int index, std::int64_t tile, std::int64_t group, const std::vector<int>& written) {
  const Node& node = listing_.nodes[index];
  const Distribution::Work& work = distribution_.work(index);
  Tuple tuple(layout_, work.axes);
  work.set_written(tuple.index, tile);
  const std::vector<std::int64_t> links = distribution_.links(index, tile, group);
  double time = 0;
  for (const std::int64_t link : links) {
    work.set_summed(tuple.index, link);
    tuple.set_chain(link == links.front(), link == links.back());
    Instruction task{.kind = Instruction::Kind::task, .node = index};
    if (node.semantics->part) task.buffers.push_back(read_part(index, tuple));
    task.spec = node.semantics->task(node, tuple);
    for (std::size_t i = task.buffers.size(); i < node.inputs.size(); ++i) {
      // A bias, say, is of use only to the last task of a chain.
      const bool used = node.inputs[i] && task.spec.op->has(task.spec.attributes.data(), static_cast<int>(i));
      task.buffers.push_back(used ? read(index, node.inputs[i], work.tile_of(i, tuple.index)) : -1);
    }
    task.buffers.insert(task.buffers.end(), written.begin(), written.end());
    time = std::max(time, distribution_.time(index, tuple.index));
    task.time = time;
    instructions_.push_back(std::move(task));
  }
}

// The groups' sums, of which this rank has some, come together.
void Lowering::add_up(int index, std::int64_t tile, std::map<std::int64_t, int> sums) {
  const Tensor& output = listing_.nodes[index].outputs[0];
  const Value value{output.id(), tile};
  const Distribution::Tree tree = distribution_.tree(index, tile);
  for (const Distribution::Addition& addition : tree.additions) {
    const Distribution::Sum &kept = addition.kept, &read = addition.read;
    const std::int64_t tag = distribution_.number(value, read.group);
    if (read.rank == rank_ && kept.rank != rank_)
      instructions_.push_back({.kind = Instruction::Kind::send,
                               .buffers = {sums.at(read.group)},
                               .peer = kept.rank,
                               .tag = tag,
                               .time = read.time});
    if (kept.rank != rank_) continue;
    if (read.rank != rank_) {
      sums[read.group] = add_buffer(Buffer::Kind::replica, value.tensor, tile);
      instructions_.push_back({.kind = Instruction::Kind::receive,
                               .buffers = {sums[read.group]},
                               .peer = read.rank,
                               .tag = tag,
                               .time = read.time});
    }
    const Buffer& buffer = listing_.buffers[sums.at(kept.group)];
    const Combine how = distribution_.work(index).combine;
    Reduce reduce{};
    reduce.kind = how == Combine::max           ? Reduce::Kind::max
                  : how == Combine::log_sum_exp ? Reduce::Kind::log_sum_exp
                                                : Reduce::Kind::sum;
    reduce.rank = 1;
    reduce.extent[0] = static_cast<int>(buffer.bytes() / static_cast<std::int64_t>(size_of(buffer.dtype)));
    reduce.scale = 1;
    reduce.accumulate = true;
    instructions_.push_back({.kind = Instruction::Kind::task,
                             .node = index,
                             .spec = TaskSpec::of(reduce, buffer.dtype),
                             .buffers = {sums.at(read.group), sums.at(kept.group)},
                             .time = addition.time});
  }
  if (tree.result.rank == rank_) made(value, sums.at(tree.result.group));
}

void Lowering::update(int index, std::int64_t tile) {
  const Node& node = listing_.nodes[index];
  const Distribution::Work& work = distribution_.work(index);
  Tuple tuple(layout_, work.axes);
  work.set_written(tuple.index, tile);
  Instruction task{.kind = Instruction::Kind::task, .node = index};
  task.spec = node.semantics->task(node, tuple);
  task.time = distribution_.time(index, tuple.index);
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    const Tensor& x = node.inputs[i];
    task.buffers.push_back(x ? read(index, x, work.tile_of(i, tuple.index)) : -1);
  }
  const std::vector<int> buffers = task.buffers;
  instructions_.push_back(std::move(task));
  for (const int i : work.updated) {
    if (listing_.buffers[buffers[i]].kind != Buffer::Kind::state)
      throw std::logic_error("[compile] " + node.inputs[i].describe() + " is updated where it is not");
    const Value before = distribution_.read_by(index, node.inputs[i], work.tile_of(i, tuple.index));
    made({before.tensor, before.tile, before.version + 1}, buffers[i]);
  }
}

void Lowering::node(int index) {
  const Node& node = listing_.nodes[index];
  const Distribution::Work& work = distribution_.work(index);
  distribution_.for_each_tile(index, rank_, [&](std::int64_t tile, std::span<const std::int64_t> groups) {
    if (!work.updated.empty()) return update(index, tile);
    if (work.moved.size() == 1) {
      std::vector<int> written;
      for (const Tensor& y : node.outputs) written.push_back(add_buffer(Buffer::Kind::value, y.id(), tile));
      chain(index, tile, 0, written);
      for (std::size_t i = 0; i < written.size(); ++i) made({node.outputs[i].id(), tile}, written[i]);
      return;
    }
    std::map<std::int64_t, int> sums;  // buffers
    for (const std::int64_t group : groups) {
      if (node.semantics->skip && distribution_.links(index, tile, group).empty()) continue;
      sums[group] = add_buffer(Buffer::Kind::value, node.outputs[0].id(), tile);
      chain(index, tile, group, {sums[group]});
    }
    if (!sums.empty()) add_up(index, tile, std::move(sums));
  });
  append(index);
}

void Lowering::append(int index) {
  auto add = [&](std::vector<Instruction>& from) {
    std::ranges::move(from, std::back_inserter(listing_.instructions));
    from.clear();
  };
  add(pending_[index]);
  for (auto& [value, messages] : arriving_) add(messages);
  arriving_.clear();
  add(instructions_);
}

void Lowering::outputs(const std::vector<Tensor>& tensors) {
  const int after = static_cast<int>(listing_.nodes.size());
  std::set<int> brought;
  for (const Tensor& tensor : tensors) {
    if (rank_ != 0 || !brought.insert(tensor.id()).second) continue;
    for (std::int64_t tile = 0; tile < layout_.tiles(tensor.axes()); ++tile) {
      const int buffer = read(after, tensor, tile);
      instructions_.push_back({.kind = Instruction::Kind::fetch,
                               .buffers = {buffer},
                               .time = distribution_.written(distribution_.read_by(after, tensor, tile))});
    }
  }
  append(after);
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

  const Distribution distribution(graph, layout, listing.nodes, passes(listing.nodes, layout),
                                  options.outputs, ranks);
  Lowering lowering(graph, layout, distribution, rank, listing);
  lowering.states();
  for (int i = 0; i < static_cast<int>(listing.nodes.size()); ++i) lowering.node(i);
  lowering.outputs(options.outputs);
  // As the schedule says; what it does not tell apart stays as it is. Nothing comes before what it needs.
  std::ranges::stable_sort(listing.instructions, {}, &Instruction::time);
  if (layout.in_order()) take_turns(listing);
  prioritize(listing);
  drop_after_last_use(listing, layout);
  return listing;
}

}  // namespace tegula
