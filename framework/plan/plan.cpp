#include "framework/plan/plan.hpp"

#include <fnmatch.h>

#include <algorithm>
#include <stdexcept>

namespace tegula {

namespace {
// Far beyond any machine and network: a number with some digits too many is told, not allocated for.
constexpr std::int64_t most_ranks = 1'000'000;
constexpr int most_stages = 10'000;
}  // namespace

Plan& Plan::tile(const Axis& axis, std::int64_t size) {
  if (size < 1)
    throw std::invalid_argument("[plan] the tile size of axis " + axis.name() + " is " +
                                std::to_string(size) + "; it must be at least 1");
  tiles_[axis.id()] = size;
  groups_.erase(axis.id());  // a group chosen for other tiles
  return *this;
}

Plan& Plan::group(const Axis& axis, int tiles) {
  if (tiles < 1)
    throw std::invalid_argument("[plan] the group size of axis " + axis.name() + " is " +
                                std::to_string(tiles) + "; it must be at least 1");
  groups_[axis.id()] = tiles;
  return *this;
}

Plan& Plan::mesh(std::vector<std::pair<std::string, int>> dimensions) {
  std::int64_t ranks = 1;
  for (const auto& [name, size] : dimensions) {
    if (size < 1)
      throw std::invalid_argument("[plan] mesh dimension " + name + " has size " + std::to_string(size) +
                                  "; it must be at least 1");
    ranks *= size;
    if (ranks > most_ranks)
      throw std::invalid_argument("[plan] the mesh has " + std::to_string(ranks) +
                                  " places up to dimension " + name + "; it may have " +
                                  std::to_string(most_ranks));
  }
  mesh_ = std::move(dimensions);
  proportions_.clear();
  for (const auto& [name, size] : mesh_) proportions_.emplace_back(size, 1);
  for (auto& shards : shards_) shards.clear();
  overrides_.clear();
  stage_dimension_.reset();
  stages_ = 1;
  layers_.clear();
  return *this;
}

int Plan::dimension(const std::string& name, const std::string& what) const {
  auto place = std::ranges::find(mesh_, name, &std::pair<std::string, int>::first);
  if (place == mesh_.end()) {
    std::string known;
    for (const auto& [other, size] : mesh_) known += (known.empty() ? "" : ", ") + other;
    throw std::invalid_argument("[plan] " + what + " along \"" + name + "\", but the mesh has " +
                                (known.empty() ? "no dimensions" : "only " + known));
  }
  return static_cast<int>(place - mesh_.begin());
}

Plan& Plan::shard(const Axis& axis, const std::string& dimension, Placed which) {
  return shard(axis, std::vector{dimension}, which);
}

std::vector<int> Plan::dimensions(const Axis& axis, const std::vector<std::string>& names) const {
  std::vector<int> along;
  for (const std::string& name : names) {
    along.push_back(dimension(name, "axis " + axis.name() + " is to be sharded"));
    if (std::ranges::count(along, along.back()) > 1)
      throw std::invalid_argument("[plan] axis " + axis.name() + " is to be sharded along \"" + name +
                                  "\" twice");
    if (stage_dimension_ == along.back())
      throw std::invalid_argument("[plan] axis " + axis.name() + " is to be sharded along \"" + name +
                                  "\", where the stages lie");
  }
  return along;
}

Plan& Plan::shard(const Axis& axis, const std::vector<std::string>& names, Placed which) {
  const std::vector<int> along = dimensions(axis, names);
  for (bool parameters : {false, true}) {
    if (which == (parameters ? Placed::activations : Placed::parameters)) continue;
    auto [place, added] = shards_[parameters].try_emplace(axis.id(), along);
    if (!added && place->second != along)
      throw std::invalid_argument("[plan] axis " + axis.name() + " is sharded along \"" +
                                  mesh_[place->second[0]].first + "\" already");
  }
  return *this;
}

Plan& Plan::shard_within(const std::string& scope, const Axis& axis, const std::vector<std::string>& names,
                         Placed which) {
  overrides_.push_back({scope, axis.id(), which, dimensions(axis, names)});
  return *this;
}

Plan& Plan::proportions(const std::string& name, std::vector<int> of_coordinates) {
  const int along = dimension(name, "tiles are to lie in proportion");
  if (std::ssize(of_coordinates) != mesh_[along].second ||
      std::ranges::any_of(of_coordinates, [](int part) { return part < 1 || part > 1'000'000; }))
    throw std::invalid_argument("[plan] mesh dimension " + name + " needs " +
                                std::to_string(mesh_[along].second) + " proportions between 1 and 1000000");
  proportions_[along] = std::move(of_coordinates);
  return *this;
}

Plan& Plan::micro_batches(const Axis& axis, Schedule schedule) {
  micro_batches_ = axis.id();
  schedule_ = std::move(schedule);
  return *this;
}

Plan& Plan::stages(const std::string& name, std::vector<std::pair<std::string, int>> layers) {
  const int along = dimension(name, "stages are to lie");
  auto is_taken = [&](const std::vector<int>& dimensions) {
    return std::ranges::count(dimensions, along) > 0;
  };
  bool taken = std::ranges::any_of(overrides_, is_taken, &Override::dimensions);
  for (const auto& shards : shards_)
    for (const auto& [axis, dimensions] : shards) taken |= is_taken(dimensions);
  if (taken)
    throw std::invalid_argument("[plan] stages are to lie along \"" + name + "\", where an axis is sharded");
  stages_ = 1;
  for (const auto& [layer, stage] : layers) {
    if (stage < 0 || stage >= most_stages)
      throw std::invalid_argument("[plan] layer " + layer + " is on stage " + std::to_string(stage) +
                                  "; stages count from 0 and end before " + std::to_string(most_stages));
    stages_ = std::max(stages_, stage + 1);
  }
  stage_dimension_ = along;
  layers_ = std::move(layers);
  return *this;
}

// The longest path that the scope starts with says it. Gradients are where the layer is.
std::optional<int> Plan::stage_of(std::string_view scope) const {
  while (scope.starts_with(gradient_scope)) scope.remove_prefix(gradient_scope.size());
  std::optional<int> stage;
  std::size_t longest = 0;
  for (const auto& [layer, of_layer] : layers_) {
    if (layer.size() < longest || !scope.starts_with(layer) || scope.size() == layer.size() ||
        scope[layer.size()] != '.')
      continue;
    longest = layer.size();
    stage = of_layer;
  }
  return stage;
}

Plan& Plan::recompute(std::vector<std::string> scopes) {
  recomputed_ = std::move(scopes);
  return *this;
}

std::optional<std::string> matching_scope(std::string_view pattern, std::string_view path) {
  std::size_t end = 0;
  for (auto parts = std::ranges::count(pattern, '.') + 1; parts > 0 && end != std::string_view::npos; --parts)
    end = path.find('.', end == 0 ? 0 : end + 1);
  if (end == std::string_view::npos) return {};
  std::string start(path.substr(0, end));
  if (fnmatch(std::string(pattern).c_str(), start.c_str(), 0) != 0) return {};
  return start;
}

std::optional<std::string> Plan::recomputed(std::string_view scope) const {
  for (const std::string& pattern : recomputed_) {
    if (pattern.empty()) return "";
    if (auto path = matching_scope(pattern, scope)) return path;
  }
  return {};
}

Plan& Plan::fuse(bool on) {
  fuse_ = on;
  return *this;
}

Plan Plan::on_one_rank() const {
  Plan plan;
  plan.tiles_ = tiles_, plan.groups_ = groups_, plan.fuse_ = fuse_;
  return plan;
}

std::int64_t Plan::tile_size(const Axis& axis) const {
  auto place = tiles_.find(axis.id());
  return place == tiles_.end() ? std::max<std::int64_t>(axis.extent(), 1) : place->second;
}

int Plan::group_size(const Axis& axis, std::int64_t tiles) const {
  auto place = groups_.find(axis.id());
  return place == groups_.end() ? group_by_default(tiles) : place->second;
}

const std::vector<int>& Plan::shard_dimensions(const Axis& axis, bool parameters) const {
  static const std::vector<int> none;
  auto place = shards_[parameters].find(axis.id());
  return place == shards_[parameters].end() ? none : place->second;
}

std::string Plan::describe(Graph& graph) const {
  std::string text = "mesh";
  for (std::size_t d = 0; d < mesh_.size(); ++d) {
    text += " " + mesh_[d].first + "=" + std::to_string(mesh_[d].second);
    const std::vector<int>& parts = proportions_[d];
    if (std::ranges::all_of(parts, [&](int part) { return part == parts[0]; })) continue;
    for (std::size_t i = 0; i < parts.size(); ++i) text += (i == 0 ? " (" : ":") + std::to_string(parts[i]);
    text += ")";
  }
  text += mesh_.empty() ? " of one dimension\n" : "\n";
  auto sharding = [&](const Axis& axis, bool parameters) {
    std::string names;
    for (int dimension : shard_dimensions(axis, parameters))
      names += (names.empty() ? "" : " x ") + mesh_[dimension].first;
    return names;
  };
  for (const Axis& axis : graph.axes()) {
    std::int64_t size = std::min(tile_size(axis), axis.extent());
    const std::string activations = sharding(axis, false), parameters = sharding(axis, true);
    if (size == axis.extent() && activations.empty() && parameters.empty()) continue;
    std::int64_t tiles = (axis.extent() + size - 1) / size;
    text += axis.name() + " " + std::to_string(axis.extent()) + " in tiles of " + std::to_string(size) +
            ", summed in groups of " + std::to_string(group_size(axis, tiles));
    if (!activations.empty()) text += ", sharded along " + activations;
    if (activations != parameters)
      text += parameters.empty() ? " (parameters not)" : " (parameters along " + parameters + ")";
    if (is_micro_batch(axis)) text += ", a micro-batch each: " + schedule_.name;
    text += "\n";
  }
  for (const Override& override : overrides_) {
    text += "within " + override.scope + ", ";
    for (const Axis& axis : graph.axes())
      if (axis.id() == override.axis) text += axis.name();
    text += override.dimensions.empty() ? " not sharded" : " sharded along";
    for (int dimension : override.dimensions) text += " " + mesh_[dimension].first;
    text += override.which == Placed::all          ? "\n"
            : override.which == Placed::parameters ? " (parameters)\n"
                                                   : " (activations)\n";
  }
  if (stage_dimension_) {
    text += "stages along " + mesh_[*stage_dimension_].first;
    for (const auto& [layer, stage] : layers_)
      text += (&layer == &layers_[0].first ? ": " : ", ") + layer + " " + std::to_string(stage);
    text += "\n";
  }
  for (const std::string& scope : recomputed_)
    text += (&scope == &recomputed_[0] ? "recomputed for gradients: " : ", ") +
            (scope.empty() ? "everything" : scope);
  return recomputed_.empty() ? text : text + "\n";
}

}  // namespace tegula
