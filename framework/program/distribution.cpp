#include "framework/program/distribution.hpp"

#include <algorithm>
#include <numeric>
#include <set>
#include <stdexcept>

namespace tegula {

namespace {
constexpr std::size_t most_axes = 16;  // of a tensor that tasks are placed by
}

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

void Times::at_least(const Times& other) {
  if (values_.size() < other.values_.size()) values_.resize(other.values_.size(), values_[0]);
  for (std::size_t m = 0; m < values_.size(); ++m)
    values_[m] = std::max(values_[m], other.at(static_cast<int>(m)));
}

Distribution::Distribution(Graph& graph, const Layout& layout, const std::vector<Node>& nodes,
                           std::vector<Pass> passes, const std::vector<Tensor>& outputs, int ranks)
    : graph_(graph),
      layout_(layout),
      nodes_(nodes),
      ranks_(ranks),
      uses_(graph.tensors().size()),
      seen_(ranks, 0) {
  works_.reserve(nodes.size());
  for (int i = 0; i < static_cast<int>(nodes.size()); ++i) {
    const Node& node = nodes[i];
    works_.push_back(work_of(node));
    set_times(i, passes[i]);
    for (int k = 0; k < static_cast<int>(node.inputs.size()); ++k)
      if (node.inputs[k]) uses_[node.inputs[k].id()].reads.push_back({i, k});
    for (const Tensor& y : node.outputs) uses_[y.id()].made_by = i;
  }
  for (const Tensor& output : outputs) uses_[output.id()].is_output = true;
  std::int64_t next = 0;
  for (std::size_t id = 0; id < uses_.size(); ++id) {
    Uses& uses = uses_[id];
    if (uses.reads.empty() && uses.made_by < 0 && !uses.is_output) continue;
    uses.first_number = next;
    const std::size_t each = uses.made_by < 0 ? uses.written.size() : works_[uses.made_by].moved.size() + 1;
    next += layout.tiles(graph.tensor(static_cast<int>(id)).axes()) * static_cast<std::int64_t>(each);
  }
  for (std::size_t i = 0; i < nodes.size(); ++i)
    if (nodes[i].semantics->part) {
      Work& work = works_[i];
      work.first_part = next;
      next += std::accumulate(work.tiles.begin(), work.tiles.end(), std::int64_t{1}, std::multiplies<>());
    }
  if (next >> 32 != 0)
    throw std::invalid_argument("[plan] the program has " + std::to_string(next) +
                                " tiles, too many to number their messages; use larger tiles");
}

Distribution::Work Distribution::work_of(const Node& node) const {
  Work work;
  const bool updates_state = node.outputs.empty();
  work.axes = node.axes(updates_state ? 0 : node.inputs.size());
  work.written = work.axes.size();
  const std::size_t operands = node.inputs.size() + node.outputs.size();
  work.operand.resize(operands);
  for (std::size_t i = 0; i < operands; ++i) {
    if (i < node.inputs.size() && !node.inputs[i]) continue;
    for (const Axis& axis : node.axes(i)) {  // of outputs, too: axes such as those of a convolution's
      auto place = std::ranges::find(work.axes, axis);
      work.operand[i].push_back(static_cast<int>(place - work.axes.begin()));
      if (place == work.axes.end()) work.axes.push_back(axis);
    }
  }
  for (std::size_t i = 0; i < work.axes.size(); ++i) {
    work.tiles.push_back(layout_.tiles(work.axes[i]));
    if (layout_.is_micro_batch(work.axes[i])) work.batch = static_cast<int>(i);
  }
  work.placed = static_cast<int>(node.inputs.size());
  if (updates_state) {
    const TaskSpec spec = node.semantics->task(node, Tuple(layout_, work.axes));
    for (int i = 0; i < static_cast<int>(node.inputs.size()); ++i)
      if (node.inputs[i] && spec.op->operands[i].access == Access::read_write) work.updated.push_back(i);
    work.placed = work.updated.front();
    work.moved = {0};
  }
  if (work.operand[work.placed].size() > most_axes)
    throw std::invalid_argument("[compile] [" + std::string(node.semantics->name) +
                                "] has a tensor of more than " + std::to_string(most_axes) + " axes");
  if (updates_state) return work;
  const Axes summed(work.axes.begin() + static_cast<std::ptrdiff_t>(work.written), work.axes.end());
  work.chain = layout_.tiles(summed);
  work.group = node.semantics->chain ? work.chain : layout_.group_size(summed);
  if (node.semantics->combine) work.combine = node.semantics->combine(node);
  const std::int64_t groups = (work.chain + work.group - 1) / work.group;
  work.moved.assign(groups, 0);
  if (node.semantics->chain) return work;
  // A chain runs where its first tiles of the summed axes are.
  const Tensor& result = node.outputs[0];
  for (const Axis& axis : summed)
    for (const int dimension : layout_.moves(result, axis))
      if (std::ranges::count(work.moved_along, dimension) == 0) work.moved_along.push_back(dimension);
  if (work.moved_along.empty()) return work;
  std::vector<std::int64_t> index(work.axes.size());
  for (std::int64_t g = 0; g < groups; ++g) {
    work.set_summed(index, g * work.group);
    for (std::size_t i = 0; i < summed.size(); ++i)
      work.moved[g] = layout_.moved(work.moved[g], result, summed[i], index[work.written + i]);
  }
  return work;
}

// Nothing comes before what it needs; for all tiles of a micro-batch alike, so that it can be told without looking at them.
void Distribution::set_times(int index, Pass pass) {
  const Node& node = nodes_[index];
  Work& work = works_[index];
  auto has_batch = [&](const Tensor& tensor) {
    return std::ranges::any_of(tensor.axes(), [&](const Axis& a) { return layout_.is_micro_batch(a); });
  };
  if (work.batch < 0) {
    for (const Tensor& x : node.inputs)
      if (x) work.times.at_least(Times(uses_[x.id()].written.back().latest()));
  } else {
    std::vector<double> own(layout_.micro_batches(), 0);
    for (int m = 0; work.updated.empty() && m < layout_.micro_batches(); ++m)
      own[m] = layout_.time(layout_.stage(node.outputs[0]), m, pass);
    work.times = Times(std::move(own));
    for (const Tensor& x : node.inputs)
      if (x) work.times.at_least(uses_[x.id()].written.back());
  }
  for (const int i : work.updated) work.times.at_least(uses_[node.inputs[i].id()].read);
  if (work.batch >= static_cast<int>(work.written)) {
    work.group_times.assign(work.moved.size(), 0);
    std::vector<std::int64_t> tuple(work.axes.size());
    for (std::int64_t i = 0; i < work.chain; ++i) {
      work.set_summed(tuple, i);
      double& time = work.group_times[i / work.group];
      time = std::max(time, work.times.at(layout_.micro_batch(tuple[work.batch])));
    }
  }
  auto of = [&](const Tensor& x) { return has_batch(x) ? work.times : Times(work.times.latest()); };
  for (const Tensor& y : node.outputs) uses_[y.id()].written = {of(y)};
  for (const Tensor& x : node.inputs)
    if (x) uses_[x.id()].read.at_least(of(x));
  for (const int i : work.updated) {
    const Tensor& x = node.inputs[i];
    Uses& uses = uses_[x.id()];
    uses.updates.push_back(index);
    uses.written.push_back(of(x));
    uses.read = of(x);
  }
}

const Tensor& Distribution::placed(int node) const {
  return works_[node].updated.empty() ? nodes_[node].outputs[0] : nodes_[node].inputs[works_[node].placed];
}

int Distribution::rank_of(int node, std::span<const std::int64_t> index, std::int64_t group) const {
  const Work& work = works_[node];
  std::array<std::int64_t, most_axes> tile;
  const std::vector<int>& places = work.operand[work.placed];
  for (std::size_t i = 0; i < places.size(); ++i) tile[i] = index[places[i]];
  const int owner = layout_.owner(placed(node), {tile.data(), places.size()});
  return work.moved_along.empty() ? owner + work.moved[group]
                                  : layout_.without(owner, work.moved_along) + work.moved[group];
}

// Tiles along an axis that may lie on the rank, so far as its shards and, if they have a say, the stages go.
Distribution::Choice Distribution::candidates(const Layout::Spread& spread, std::size_t axis, int rank,
                                              bool by_stage) const {
  const Layout::Shards& shards = *spread.axes[axis];
  const int* places = by_stage && spread.batch == static_cast<int>(axis) ? spread.places : nullptr;
  if (shards.ranks.empty() && !places) return {};
  auto [known, added] = candidates_.try_emplace({{&shards, places}, rank});
  if (added) {
    const int along = rank - layout_.without(rank, shards.along),
              stage = places ? rank - layout_.without(rank, {*layout_.stage_dimension()}) : 0;
    for (std::int64_t tile = 0; tile < spread.tiles[axis]; ++tile)
      if ((shards.ranks.empty() || shards.ranks[tile] == along) &&
          (!places || places[layout_.micro_batch(tile)] == stage))
        known->second.push_back(tile);
  }
  return known->second;
}

// One tile for each place that a tile can have on account of this axis.
Distribution::Choice Distribution::representatives(const Layout::Spread& spread, std::size_t axis) const {
  const Layout::Shards& shards = *spread.axes[axis];
  const int* places = spread.batch == static_cast<int>(axis) ? spread.places : nullptr;
  auto [known, added] = representatives_.try_emplace({&shards, places});
  if (added) {
    std::set<std::pair<int, int>> seen;
    const std::int64_t count = shards.ranks.empty() && !places ? 1 : spread.tiles[axis];
    for (std::int64_t tile = 0; tile < count; ++tile)
      if (seen.emplace(shards.ranks.empty() ? 0 : shards.ranks[tile],
                       places ? places[layout_.micro_batch(tile)] : 0)
              .second)
        known->second.push_back(tile);
  }
  return known->second;
}

namespace {

using Choice = Distribution::Choice;

// Calls visit for each choice of a tile along each axis, in row-major order.
template <class Visit>
void for_each_choice(std::span<const Choice> choices, std::span<const std::int64_t> tiles,
                     std::span<std::int64_t> index, Visit visit, std::size_t axis = 0) {
  if (axis == choices.size()) return visit();
  const Choice& choice = choices[axis];
  const auto count = choice ? static_cast<std::int64_t>(choice->size()) : tiles[axis];
  for (std::int64_t i = 0; i < count; ++i) {
    index[axis] = choice ? (*choice)[i] : i;
    for_each_choice(choices, tiles, index, visit, axis + 1);
  }
}

// The choices of tuples in which an operand has the tile; `room` keeps what they refer to.
std::vector<Choice> choices_with(const Distribution::Work& work, std::size_t operand, std::int64_t tile,
                                 std::vector<std::int64_t>& room) {
  std::vector<Choice> choices(work.axes.size());
  room.resize(work.axes.size());
  const std::vector<int>& axes = work.operand[operand];
  for (std::size_t i = axes.size(); i-- > 0; tile /= work.tiles[axes[i]]) {
    room[axes[i]] = tile % work.tiles[axes[i]];
    choices[axes[i]] = std::span(&room[axes[i]], 1);
  }
  return choices;
}

}  // namespace

void Distribution::for_each_tile(int node, int rank, const VisitTile& visit) const {
  const Work& work = works_[node];
  const Layout::Spread& spread = layout_.spread(placed(node));
  const int here = layout_.without(rank, work.moved_along);
  std::vector<std::int64_t> groups;
  for (std::size_t g = 0; g < work.moved.size(); ++g)
    if (work.moved[g] == rank - here) groups.push_back(static_cast<std::int64_t>(g));
  if (groups.empty()) return;
  const bool by_stage =
      spread.places && std::ranges::count(work.moved_along, *layout_.stage_dimension()) == 0;
  if (by_stage && spread.batch < 0 &&
      spread.places[0] != rank - layout_.without(rank, {*layout_.stage_dimension()}))
    return;
  std::vector<Choice> choices(work.written);
  const std::vector<int>& places = work.operand[work.placed];
  for (std::size_t i = 0; i < places.size(); ++i) choices[places[i]] = candidates(spread, i, rank, by_stage);
  std::vector<std::int64_t> index(work.axes.size());
  for_each_choice(choices, work.tiles, std::span(index), [&] {
    if (rank_of(node, index, groups[0]) == rank) visit(work.written_tile(index), groups);
  });
}

void Distribution::for_each_tile(const Tensor& tensor, int rank,
                                 const std::function<void(std::int64_t)>& visit) const {
  const Layout::Spread& spread = layout_.spread(tensor);
  std::vector<Choice> choices(spread.tiles.size());
  for (std::size_t i = 0; i < choices.size(); ++i) choices[i] = candidates(spread, i, rank, false);
  std::vector<std::int64_t> index(choices.size());
  for_each_choice(choices, spread.tiles, std::span(index), [&] {
    if (layout_.owner(tensor, index) != rank) return;
    std::int64_t tile = 0;
    for (std::size_t i = 0; i < index.size(); ++i) tile = tile * spread.tiles[i] + index[i];
    visit(tile);
  });
}

std::vector<std::int64_t> Distribution::links(int node, std::int64_t tile, std::int64_t group) const {
  const Work& work = works_[node];
  const Semantics& semantics = *nodes_[node].semantics;
  const std::int64_t begin = group * work.group, end = std::min(begin + work.group, work.chain);
  std::vector<std::int64_t> all(end - begin);
  std::iota(all.begin(), all.end(), begin);
  if (!semantics.skip) return all;
  Tuple tuple(layout_, work.axes);
  work.set_written(tuple.index, tile);
  std::erase_if(all, [&](std::int64_t link) {
    work.set_summed(tuple.index, link);
    return semantics.skip(nodes_[node], tuple);
  });
  // Where nothing contributes at all the output still has to be written.
  if (all.empty() && end == work.chain) {
    for (std::int64_t link = 0; link < begin; ++link) {
      work.set_summed(tuple.index, link);
      if (!semantics.skip(nodes_[node], tuple)) return all;
    }
    all.push_back(begin);
  }
  return all;
}

double Distribution::time(int node, std::span<const std::int64_t> index) const {
  const Work& work = works_[node];
  return work.times.at(work.batch < 0 ? 0 : layout_.micro_batch(index[work.batch]));
}

Distribution::Tree Distribution::tree(int node, std::int64_t tile) const {
  const Work& work = works_[node];
  std::vector<std::int64_t> index(work.axes.size());
  work.set_written(index, tile);
  std::vector<Sum> level;
  const bool skips = nodes_[node].semantics->skip && work.moved.size() > 1;
  for (std::int64_t g = 0; g < static_cast<std::int64_t>(work.moved.size()); ++g)
    if (!skips || !links(node, tile, g).empty())
      level.push_back(
          {g, rank_of(node, index, g), work.group_times.empty() ? time(node, index) : work.group_times[g]});
  Tree tree;
  if (level.size() > 1) {
    const int owner = layout_.owner(nodes_[node].outputs[0], tile);
    while (level.size() > 1) {
      std::vector<Sum> next;
      for (std::size_t i = 0; i + 1 < level.size(); i += 2) {
        const Sum &left = level[i], &right = level[i + 1];
        const bool keep_right = right.rank == owner && left.rank != owner;  // less has to travel
        const Sum &kept = keep_right ? right : left, &read = keep_right ? left : right;
        tree.additions.push_back({kept, read, std::max(kept.time, read.time)});
        next.push_back({kept.group, kept.rank, tree.additions.back().time});
      }
      if (level.size() % 2) next.push_back(level.back());
      level = std::move(next);
    }
  }
  tree.result = level[0];
  return tree;
}

Value Distribution::read_by(int node, const Tensor& tensor, std::int64_t tile) const {
  const std::vector<int>& updates = uses_[tensor.id()].updates;
  return {tensor.id(), tile, static_cast<int>(std::ranges::lower_bound(updates, node) - updates.begin())};
}

int Distribution::home(const Value& value) const {
  const int node = uses_[value.tensor].made_by;
  if (node < 0) return layout_.owner(graph_.tensor(value.tensor), value.tile);
  const Work& work = works_[node];
  if (work.moved.size() > 1) return tree(node, value.tile).result.rank;
  std::vector<std::int64_t> index(work.axes.size());
  work.set_written(index, value.tile);
  return rank_of(node, index, 0);
}

double Distribution::written(const Value& value) const {
  const Times& times = uses_[value.tensor].written[value.version];
  const int micro_batch = layout_.micro_batch(graph_.tensor(value.tensor).axes(), value.tile);
  return micro_batch < 0 ? times.latest() : times.at(micro_batch);
}

// Adds the ranks where tasks of the node read the tile.
void Distribution::add_ranks(int node, std::size_t operand, std::int64_t tile,
                             std::vector<int>& ranks) const {
  const Work& work = works_[node];
  const Layout::Spread& spread = layout_.spread(placed(node));
  std::vector<std::int64_t> index(work.axes.size()), room;
  std::vector<Choice> choices = choices_with(work, operand, tile, room);
  const bool skips = nodes_[node].semantics->skip != nullptr;
  const bool dealt = std::ranges::any_of(spread.dealt, [&](const Layout::Spread::Dealt& d) {
    return std::ranges::count(work.moved_along, d.dimension) == 0;
  });
  const std::vector<int>& of_placed = work.operand[work.placed];
  static constexpr std::array<std::int64_t, 1> first{0};
  for (std::size_t axis = 0; axis < work.axes.size() && !skips; ++axis) {
    if (choices[axis]) continue;
    if (axis >= work.written) {
      if (work.moved.size() == 1) choices[axis] = first;
      continue;
    }
    auto place = std::ranges::find(of_placed, static_cast<int>(axis));
    if (place == of_placed.end())
      choices[axis] = first;
    else if (!dealt)
      choices[axis] = representatives(spread, place - of_placed.begin());
  }
  for_each_choice(choices, work.tiles, std::span(index), [&] {
    const std::int64_t tuple = work.summed_tuple(index),
                       group = work.updated.empty() ? tuple / work.group : 0;
    if (skips && std::ranges::count(links(node, work.written_tile(index), group), tuple) == 0) return;
    const int rank = rank_of(node, index, group);
    if (std::exchange(seen_[rank], question_) != question_) ranks.push_back(rank);
  });
}

// Nodes that read this version come after the first of these, up to the second.
std::pair<int, int> Distribution::readers_between(const Value& value) const {
  const std::vector<int>& updates = uses_[value.tensor].updates;
  return {value.version == 0 ? -1 : updates[value.version - 1],
          value.version == std::ssize(updates) ? static_cast<int>(nodes_.size()) : updates[value.version]};
}

std::vector<Distribution::Reader> Distribution::readers(const Value& value) const {
  const Uses& uses = uses_[value.tensor];
  const int home = this->home(value);
  ++question_;
  seen_[home] = question_;
  std::vector<Reader> all;
  std::vector<int> ranks;
  auto add = [&](int node) {
    // Neighbours follow each other, so that most of a tree's messages stay within a node of the cluster.
    std::ranges::sort(ranks, {}, [&](int rank) { return (rank - home + ranks_) % ranks_; });
    for (const int rank : ranks) all.push_back({node, rank});
    ranks.clear();
  };
  const auto [after, last] = readers_between(value);
  for (const Use& use : uses.reads) {
    if (use.node <= after || use.node > last || nodes_[use.node].semantics->part) continue;
    add_ranks(use.node, use.operand, value.tile, ranks);
    add(use.node);
  }
  if (uses.is_output && last == static_cast<int>(nodes_.size()) && seen_[0] != question_) {
    ranks.push_back(0);
    add(static_cast<int>(nodes_.size()));
  }
  return all;
}

std::vector<Distribution::PartReader> Distribution::part_readers(const Value& value) const {
  const auto [after, last] = readers_between(value);
  std::vector<PartReader> all;
  std::set<std::pair<int, TileRegion>> known;
  int home = -1;
  for (const Use& use : uses_[value.tensor].reads) {
    if (use.node <= after || use.node > last || !nodes_[use.node].semantics->part) continue;
    if (home < 0) home = this->home(value);
    const Work& work = works_[use.node];
    Tuple tuple(layout_, work.axes);
    std::vector<std::int64_t> room;
    const std::vector<Choice> choices = choices_with(work, use.operand, value.tile, room);
    for_each_choice(choices, work.tiles, std::span(tuple.index), [&] {
      const Node& node = nodes_[use.node];
      const int rank = rank_of(use.node, tuple.index, 0);
      if (rank == home || node.semantics->skip(node, tuple)) return;
      TileRegion part = node.semantics->part(node, tuple);
      if (known.emplace(rank, part).second)
        all.push_back({use.node, rank, std::move(part), number(use.node, tuple)});
    });
  }
  return all;
}

std::int64_t Distribution::number(int node, const Tuple& tuple) const {
  const Work& work = works_[node];
  return work.first_part + work.written_tile(tuple.index) * work.chain + work.summed_tuple(tuple.index);
}

std::int64_t Distribution::number(const Value& value, std::int64_t group) const {
  const Uses& uses = uses_[value.tensor];
  const auto each = static_cast<std::int64_t>(uses.made_by < 0 ? uses.written.size()
                                                               : works_[uses.made_by].moved.size() + 1);
  return uses.first_number + value.tile * each + (group < 0 ? value.version : group + 1);
}

}  // namespace tegula
