// How a plan cuts the axes of a graph, and which rank has which tile.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <stdexcept>

#include "framework/program/listing.hpp"

namespace tegula {

Layout::Layout(Graph& graph, const Plan& plan, int ranks, const CompileOptions& options)
    : graph_(graph), plan_(plan), ranks_(ranks), mesh_(plan.mesh()) {
  if (mesh_.empty()) mesh_ = {{"data", ranks}};
  strides_.resize(mesh_.size());
  for (const auto& [axis, extent] : options.extents) extents_.emplace_back(axis.id(), extent);
  int product = 1;
  for (int i = static_cast<int>(strides_.size()) - 1; i >= 0; --i) {
    strides_[i] = product;
    product *= mesh_[i].second;
  }
  std::string text;
  for (const auto& [name, size] : mesh_) {
    if (!text.empty()) text += ", ";
    text += name + "=" + std::to_string(size);
  }
  if (product != ranks)
    throw std::invalid_argument("[plan] the mesh (" + text + ") has " + std::to_string(product) +
                                " places but the job has " + std::to_string(ranks) +
                                " ranks; start as many ranks or change the mesh");
  for (const Axis& axis : graph.axes())
    if (extent(axis) < 1)
      throw std::invalid_argument("[compile] axis " + axis.name() + " has extent " +
                                  std::to_string(extent(axis)) + "; a program needs at least 1");
  const std::optional<int> stages = plan.stage_dimension();
  pipeline_ = {plan.stages(), stages ? mesh_[*stages].second : 1, 1};
  for (const Axis& axis : graph.axes()) {
    for (bool parameters : {false, true}) {
      shards_[parameters].resize(std::max<std::size_t>(shards_[parameters].size(), axis.id() + 1));
      shards_[parameters][axis.id()] = divide(axis, plan.shard_dimensions(axis, parameters));
    }
    if (!is_micro_batch(axis)) continue;
    const std::vector<std::int64_t>& first = shards(axis, false).first;
    for (std::int64_t tile = 0; tile < tiles(axis); ++tile) {
      micro_batches_.push_back(static_cast<int>(first.empty() ? tile : tile - first[tile]));
      pipeline_.micro_batches = std::max(pipeline_.micro_batches, micro_batches_.back() + 1);
    }
  }
  for (const Plan::Override& override : plan.overrides())
    for (const Axis& axis : graph.axes()) {
      if (axis.id() != override.axis) continue;
      if (is_micro_batch(axis))
        throw std::invalid_argument(
            "[plan] axis " + axis.name() +
            " has the micro-batches; it is sharded alike in all scopes, not otherwise in " + override.scope);
      overrides_.push_back(divide(axis, override.dimensions));
    }
  check_schedule();
  places_.resize(graph.tensors().size());
  for (std::size_t id = 0; id < places_.size(); ++id)
    places_[id].parameter = graph.tensors()[id].kind == TensorInfo::Kind::state;
  learn(graph.nodes());
  auto refuse = [&](const std::string& what) {
    std::string known;
    for (const std::string& layer : graph.layers()) known += (known.empty() ? "; there are " : ", ") + layer;
    throw std::invalid_argument("[plan] " + what + ", but the graph has no scope of that name" + known);
  };
  auto is_known = [&](auto matches) {
    return std::ranges::any_of(graph.nodes(), [&](const Node& node) { return matches(node.scope); });
  };
  for (const auto& layer : plan.layers())
    if (!is_known([&](const std::string& scope) { return scope.starts_with(layer.first + "."); }))
      refuse("layer " + layer.first + " is to be on stage " + std::to_string(layer.second));
  for (const Plan::Override& override : plan.overrides())
    if (!is_known(
            [&](const std::string& scope) { return matching_scope(override.scope, scope).has_value(); }))
      refuse("an axis is to be sharded otherwise within " + override.scope);
  for (int id = 0; id < static_cast<int>(graph.tensors().size()); ++id) check(graph.tensor(id));
}

// What the plan's schedule, which may be an app's own, says of each pass; and makes the table of places.
void Layout::check_schedule() {
  const Schedule& schedule = plan_.schedule();
  const std::optional<int> along = plan_.stage_dimension();
  for (int stage = 0; stage < pipeline_.stages; ++stage)
    for (int m = 0; m < pipeline_.micro_batches; ++m) {
      auto refuse = [&](const std::string& why) {
        throw std::invalid_argument("[plan] the schedule " + schedule.name + " has stage " +
                                    std::to_string(stage) + " work on micro-batch " + std::to_string(m) +
                                    why);
      };
      for (const Pass pass : {Pass::forward, Pass::input_gradient, Pass::weight_gradient})
        if (!std::isfinite(time(stage, m, pass))) refuse(" at a time that is not a finite number");
      if (!along) continue;
      const int place = schedule.place(pipeline_, stage, m);
      if (place < 0 || place >= pipeline_.places)
        refuse(" at place " + std::to_string(place) + " of mesh dimension \"" + mesh_[*along].first +
               "\", which has " + std::to_string(pipeline_.places));
      places_of_stages_.push_back(place * strides_[*along]);
    }
}

// No two axes of a tensor may want to say which coordinate of a mesh dimension it has.
void Layout::check(const Tensor& tensor) const {
  for (const Axis& a : tensor.axes())
    for (const Axis& b : tensor.axes())
      for (int dimension : dimensions(tensor, a))
        if (a.id() < b.id() && std::ranges::count(dimensions(tensor, b), dimension) > 0)
          throw std::invalid_argument("[plan] " + tensor.describe() + " has two axes, " + a.name() + " and " +
                                      b.name() + ", sharded along \"" + mesh_[dimension].first +
                                      "\"; they need mesh dimensions of their own");
}

const Layout::Cut& Layout::cut(const Axis& axis) const {
  const Axis original = axis.original();
  const std::optional<Reach> reach = axis.reach();
  const auto id = static_cast<std::size_t>(reach ? axis.id() : original.id());
  if (id >= cuts_.size()) cuts_.resize(id + 1);
  if (cuts_[id].extent >= 0) return cuts_[id];
  if (reach) {  // all tiles but the last have one size, as those of the original
    const Cut outputs = cut(original);
    Cut windows{.size = (*reach)(outputs.size), .tiles = outputs.tiles};
    windows.extent =
        (outputs.tiles - 1) * windows.size + (*reach)(outputs.extent - (outputs.tiles - 1) * outputs.size);
    return cuts_[id] = windows;
  }
  Cut& cut = cuts_[id];
  cut.extent = original.extent();
  for (const auto& [other, extent] : extents_)
    if (other == original.id()) cut.extent = extent;
  cut.size = std::min(plan_.tile_size(original), cut.extent);
  cut.tiles = cut.size == 0 ? 0 : (cut.extent + cut.size - 1) / cut.size;
  return cut;
}

std::int64_t Layout::extent(const Axis& axis) const { return cut(axis).extent; }
std::int64_t Layout::tile_size(const Axis& axis) const { return cut(axis).size; }
std::int64_t Layout::tiles(const Axis& axis) const { return cut(axis).tiles; }

std::vector<std::int64_t> Layout::extents(const Axes& axes) const {
  std::vector<std::int64_t> all;
  for (const Axis& axis : axes) all.push_back(extent(axis));
  return all;
}

std::int64_t Layout::tiles(const Axes& axes) const {
  std::int64_t product = 1;
  for (const Axis& axis : axes) product *= tiles(axis);
  return product;
}

TileRegion Layout::region(const Axes& axes, std::int64_t tile) const {
  TileRegion region{std::vector<std::int64_t>(axes.size()), std::vector<std::int64_t>(axes.size())};
  for (std::size_t i = axes.size(); i-- > 0;) {
    std::int64_t size = tile_size(axes[i]), index = tile % tiles(axes[i]);
    tile /= tiles(axes[i]);
    region.begin[i] = index * size;
    region.extent[i] = std::min(size, extent(axes[i]) - region.begin[i]);
  }
  return region;
}

int Layout::coordinate(int rank, int dimension) const {
  return rank / strides_[dimension] % mesh_[dimension].second;
}

int Layout::with_coordinate(int rank, int dimension, int coordinate) const {
  return rank + (coordinate - this->coordinate(rank, dimension)) * strides_[dimension];
}

// Consecutive tiles on one coordinate, as many as its proportion gives, as evenly as they go.
Layout::Shards Layout::divide(const Axis& axis, const std::vector<int>& along) const {
  Shards shards{along, {}, {}};
  if (along.empty()) return shards;
  std::vector<std::int64_t> parts{1};  // of the coordinates of the product
  std::vector<int> ranks{0};
  for (int dimension : along) {
    std::vector<std::int64_t> finer;
    std::vector<int> finer_ranks;
    for (std::size_t i = 0; i < parts.size(); ++i)
      for (int c = 0; c < mesh_[dimension].second; ++c) {
        finer.push_back(parts[i] * plan_.proportions(dimension)[c]);
        finer_ranks.push_back(ranks[i] + c * strides_[dimension]);
      }
    parts = std::move(finer);
    ranks = std::move(finer_ranks);
  }
  const std::int64_t all = std::accumulate(parts.begin(), parts.end(), std::int64_t{0}), count = tiles(axis);
  std::int64_t before = 0;
  for (std::int64_t tile = 0, first = 0, coordinate = 0; tile < count; ++tile) {
    for (; tile * all >= (before + parts[coordinate]) * count; first = tile) before += parts[coordinate++];
    shards.first.push_back(first);
    shards.ranks.push_back(ranks[coordinate]);
  }
  return shards;
}

const Layout::Shards& Layout::shards(const Axis& axis, bool parameters) const {
  static const Shards
      none;  // of an axis that the plan cannot know: a twin, or one that an expansion has made
  const auto id = static_cast<std::size_t>((axis.reach() ? axis.original() : axis).id());
  return id < shards_[parameters].size() ? shards_[parameters][id] : none;
}

const Layout::Shards& Layout::shards(const Tensor& tensor, const Axis& axis, bool parameters) const {
  for (std::size_t i = overrides_.size(); i-- > 0;) {
    const Plan::Override& override = plan_.overrides()[i];
    if (override.axis == (axis.reach() ? axis.original() : axis).id() &&
        override.which != (parameters ? Placed::activations : Placed::parameters) &&
        matching_scope(override.scope, places_[tensor.id()].scope))
      return overrides_[i];
  }
  return shards(axis, parameters);
}

const std::vector<int>& Layout::dimensions(const Tensor& tensor, const Axis& axis) const {
  return shards(tensor, axis, places_[tensor.id()].parameter).along;
}

int Layout::without(int rank, const std::vector<int>& dimensions) const {
  for (int dimension : dimensions) rank = with_coordinate(rank, dimension, 0);
  return rank;
}

std::vector<int> Layout::moves(const Tensor& result, const Axis& axis) const {
  std::vector<int> all;
  if (is_micro_batch(axis) && plan_.stage_dimension()) all.push_back(*plan_.stage_dimension());
  const std::vector<int>& along = shards(result, axis, /*parameters=*/false).along;
  for (const Axis& kept : result.axes())
    for (int dimension : dimensions(result, kept))
      if (std::ranges::count(along, dimension) > 0) return all;
  all.insert(all.end(), along.begin(), along.end());
  return all;
}

int Layout::moved(int owner, const Tensor& result, const Axis& axis, std::int64_t tile) const {
  const std::vector<int> along = moves(result, axis);
  owner = without(owner, along);
  const bool by_stage = is_micro_batch(axis) && plan_.stage_dimension();
  if (by_stage) owner += spread(result).places[micro_batches_[tile]];
  return along.size() > (by_stage ? 1 : 0) ? owner + shards(result, axis, false).ranks[tile] : owner;
}

const Layout::Spread& Layout::spread(const Tensor& tensor) const {
  const auto id = static_cast<std::size_t>(tensor.id());
  if (id >= spreads_.size()) spreads_.resize(std::max(graph_.tensors().size(), id + 1));
  Spread& spread = spreads_[id];
  const Axes& axes = tensor.axes();
  const std::optional<int> stages = plan_.stage_dimension();
  if (spread.axes.size() == axes.size() && (spread.places || !stages)) return spread;
  check(tensor);
  for (const Axis& axis : axes) {
    if (is_micro_batch(axis)) spread.batch = static_cast<int>(spread.axes.size());
    spread.axes.push_back(&shards(tensor, axis, places_[id].parameter));
    spread.tiles.push_back(tiles(axis));
    spread.turn += axis.original().id();
  }
  // Parameters of one layer behind those of the one before: else those of all layers that have the same axes would meet on the
  // same ranks.
  if (places_[id].parameter) {
    std::int64_t all = 1;
    for (const std::int64_t along : spread.tiles) all *= along;
    spread.turn += std::max(places_[id].layer, 0) * all;
  }
  if (stages) spread.places = &places_of_stages_[std::size_t(stage(tensor)) * pipeline_.micro_batches];
  for (int d = static_cast<int>(strides_.size()); d-- > 0 && !axes.empty();) {
    const bool taken = stages == d || std::ranges::any_of(spread.axes, [&](const Shards* shards) {
                         return std::ranges::count(shards->along, d) > 0;
                       });
    if (!taken && mesh_[d].second > 1) spread.dealt.push_back({d, mesh_[d].second, strides_[d]});
  }
  return spread;
}

int Layout::owner(const Tensor& tensor, std::span<const std::int64_t> index) const {
  if (ranks_ == 1) return 0;
  const Spread& s = spread(tensor);
  std::int64_t tile = 0;
  int rank = 0;
  for (std::size_t i = 0; i < index.size(); ++i) {
    tile = tile * s.tiles[i] + index[i];
    if (!s.axes[i]->ranks.empty()) rank += s.axes[i]->ranks[index[i]];
  }
  tile += s.turn;
  for (const Spread::Dealt& along : s.dealt) {
    rank += static_cast<int>(tile % along.size) * along.stride;
    tile /= along.size;
  }
  if (s.places) rank += s.places[s.batch < 0 ? 0 : micro_batches_[index[s.batch]]];
  return rank;
}

int Layout::owner(const Tensor& tensor, std::int64_t tile) const {
  const Spread& s = spread(tensor);
  std::vector<std::int64_t> index(s.tiles.size());
  for (std::size_t i = index.size(); i-- > 0; tile /= s.tiles[i]) index[i] = tile % s.tiles[i];
  return owner(tensor, index);
}

double Layout::time(int stage, int micro_batch, Pass pass) const {
  return plan_.schedule().time(pipeline_, stage, micro_batch, pass);
}

int Layout::micro_batch(const Axes& axes, std::int64_t tile) const {
  for (std::size_t i = axes.size(); i-- > 0; tile /= tiles(axes[i]))
    if (is_micro_batch(axes[i])) return micro_batches_[tile % tiles(axes[i])];
  return -1;
}

bool Layout::has_micro_batches(int tensor) const {
  return std::ranges::any_of(graph_.tensor(tensor).axes(),
                             [&](const Axis& axis) { return is_micro_batch(axis); });
}

int Layout::group_size(const Axes& summed) const {
  // Counted along the outermost axis that is cut at all; inner ones belong to the same group.
  for (std::size_t i = 0; i < summed.size(); ++i)
    if (std::int64_t count = tiles(summed[i]); count > 1) {
      Axes inner(summed.begin() + static_cast<std::ptrdiff_t>(i) + 1, summed.end());
      return plan_.group_size(summed[i].original(), count) * static_cast<int>(tiles(inner));
    }
  return 1;
}

// Stages of values are those of their node's layer, or of what it reads; of parameters, the first that reads them.
void Layout::learn(const std::vector<const Node*>& nodes) {
  spreads_.clear();
  const auto place = [&](const Tensor& tensor) -> Place& {
    if (static_cast<std::size_t>(tensor.id()) >= places_.size()) places_.resize(tensor.id() + 1);
    return places_[tensor.id()];
  };
  const auto is_state = [](const Tensor& tensor) { return tensor.info().kind == TensorInfo::Kind::state; };
  const bool scopes = !plan_.overrides().empty();
  std::map<std::string_view, int> layers;  // outermost scopes, in the order of their first node
  for (const Node* node : nodes) {
    std::string_view scope = node->scope;
    while (scope.starts_with(gradient_scope)) scope.remove_prefix(gradient_scope.size());
    const int layer =
        layers.try_emplace(scope.substr(0, scope.find('.')), static_cast<int>(layers.size())).first->second;
    auto belongs = [&](const Tensor& tensor, std::string_view to, int number) {
      if (scopes && place(tensor).scope.empty()) place(tensor).scope = to;
      if (place(tensor).layer < 0) place(tensor).layer = number;
    };
    for (const Tensor& x : node->inputs) {
      if (!x || !is_state(x)) continue;
      if (node->outputs.empty())  // the moments of a parameter
        belongs(x, std::string(place(node->inputs[0]).scope), place(node->inputs[0]).layer);
      else
        belongs(x, scope, layer);
    }
    for (const Tensor& y : node->outputs) belongs(y, scope, layer);
    int stage = plan_.stage_of(node->scope).value_or(-1);
    bool parameters = false, others = false;
    for (bool of_states : {false, true})
      for (const Tensor& x : node->inputs) {
        if (!x || is_state(x) != of_states) continue;
        place(x).parameter |= of_states;
        (place(x).parameter ? parameters : others) = true;
        if (!plan_.stage_of(node->scope) && (!of_states || stage < 0))
          stage = std::max(stage, place(x).stage);
      }
    if (node->outputs.empty()) stage = std::max(place(node->inputs[0]).stage, 0);
    for (const Tensor& y : node->outputs) {
      if (place(y).stage < 0) place(y).stage = stage;
      place(y).parameter |= parameters && !others;
    }
    for (const Tensor& x : node->inputs) {
      if (!x) continue;
      if (is_state(x) && place(x).stage < 0) place(x).stage = stage;
      if (node->outputs.empty() && !x.axes().empty()) place(x).parameter = true;
    }
  }
  // Constants, which are computed from nothing, go where they are used; parts of a parameter's gradient where it is.
  for (std::size_t i = nodes.size(); i-- > 0;) {
    const Node& node = *nodes[i];
    const int stage = place(node.outputs.empty() ? node.inputs[0] : node.outputs[0]).stage;
    for (const Tensor& x : node.inputs) {
      if (!x) continue;
      if (place(x).stage < 0) place(x).stage = stage;
      if (!node.outputs.empty() && !x.axes().empty() && x.axes() == node.outputs[0].axes())
        place(x).parameter |= place(node.outputs[0]).parameter;
    }
  }
}

}  // namespace tegula
