#include "framework/plan/plan.hpp"

#include <algorithm>
#include <stdexcept>

namespace tegula {

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
  for (const auto& [name, size] : dimensions)
    if (size < 1)
      throw std::invalid_argument("[plan] mesh dimension " + name + " has size " + std::to_string(size) +
                                  "; it must be at least 1");
  mesh_ = std::move(dimensions);
  shards_.clear();
  return *this;
}

Plan& Plan::shard(const Axis& axis, const std::string& dimension) {
  auto place = std::ranges::find(mesh_, dimension, &std::pair<std::string, int>::first);
  if (place == mesh_.end()) {
    std::string known;
    for (const auto& [name, size] : mesh_) known += (known.empty() ? "" : ", ") + name;
    throw std::invalid_argument("[plan] axis " + axis.name() + " is to be sharded along \"" + dimension +
                                "\", but the mesh has " +
                                (known.empty() ? "no dimensions" : "only " + known));
  }
  if (auto taken = shard_dimension(axis); taken && *taken != place - mesh_.begin())
    throw std::invalid_argument("[plan] axis " + axis.name() + " is sharded along \"" + mesh_[*taken].first +
                                "\" already");
  shards_[axis.id()] = static_cast<int>(place - mesh_.begin());
  return *this;
}

Plan& Plan::micro_batches(const Axis& axis) {
  micro_batches_ = axis.id();
  return *this;
}

Plan& Plan::fuse(bool on) {
  fuse_ = on;
  return *this;
}

std::int64_t Plan::tile_size(const Axis& axis) const {
  auto place = tiles_.find(axis.id());
  return place == tiles_.end() ? std::max<std::int64_t>(axis.extent(), 1) : place->second;
}

int Plan::group_size(const Axis& axis, std::int64_t tiles) const {
  auto place = groups_.find(axis.id());
  return place == groups_.end() ? group_by_default(tiles) : place->second;
}

std::optional<int> Plan::shard_dimension(const Axis& axis) const {
  auto place = shards_.find(axis.id());
  return place == shards_.end() ? std::nullopt : std::optional(place->second);
}

std::string Plan::describe(Graph& graph) const {
  std::string text = "mesh";
  for (const auto& [name, size] : mesh_) text += " " + name + "=" + std::to_string(size);
  text += mesh_.empty() ? " of one dimension\n" : "\n";
  for (const Axis& axis : graph.axes()) {
    std::int64_t size = std::min(tile_size(axis), axis.extent());
    if (size == axis.extent() && !shard_dimension(axis)) continue;
    std::int64_t tiles = (axis.extent() + size - 1) / size;
    text += axis.name() + " " + std::to_string(axis.extent()) + " in tiles of " + std::to_string(size) +
            ", summed in groups of " + std::to_string(group_size(axis, tiles));
    if (auto dimension = shard_dimension(axis)) text += ", sharded along " + mesh_[*dimension].first;
    text += "\n";
  }
  return text;
}

}  // namespace tegula
