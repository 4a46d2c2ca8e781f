#include <algorithm>
#include <stdexcept>

#include "framework/program/listing.hpp"

namespace tegula {

Layout::Layout(Graph& graph, const Plan& plan, int ranks, const CompileOptions& options)
    : plan_(plan), ranks_(ranks), mesh_(plan.mesh()) {
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
  for (int id = 0; id < static_cast<int>(graph.tensors().size()); ++id) {
    const Tensor tensor = graph.tensor(id);
    for (const Axis& a : tensor.axes())
      for (const Axis& b : tensor.axes())
        if (auto dimension = plan.shard_dimension(a);
            dimension && a.id() < b.id() && dimension == plan.shard_dimension(b))
          throw std::invalid_argument("[plan] " + tensor.describe() + " has two axes, " + a.name() + " and " +
                                      b.name() + ", sharded along \"" + mesh_[*dimension].first +
                                      "\"; they need mesh dimensions of their own");
  }
}

std::int64_t Layout::extent(const Axis& axis) const {
  const Axis original = axis.original();
  for (const auto& [id, extent] : extents_)
    if (id == original.id()) return extent;
  return original.extent();
}

std::vector<std::int64_t> Layout::extents(const Axes& axes) const {
  std::vector<std::int64_t> all;
  for (const Axis& axis : axes) all.push_back(extent(axis));
  return all;
}

std::int64_t Layout::tile_size(const Axis& axis) const {
  return std::min(plan_.tile_size(axis.original()), extent(axis));
}

std::int64_t Layout::tiles(const Axis& axis) const {
  std::int64_t size = tile_size(axis);
  return (extent(axis) + size - 1) / size;
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

int Layout::moved(int base, const Axis& axis, std::int64_t tile) const {
  auto dimension = plan_.shard_dimension(axis);
  if (!dimension) return base;
  // Consecutive tiles on one rank, as evenly as they go.
  auto target = static_cast<int>(tile * mesh_[*dimension].second / tiles(axis));
  return base + (target - coordinate(base, *dimension)) * strides_[*dimension];
}

int Layout::owner(const Axes& axes, std::int64_t tile) const {
  if (ranks_ == 1) return 0;
  // Deal the tile out along the mesh dimensions that no axis of the tensor is sharded on ...
  std::int64_t turn = tile;
  for (const Axis& axis : axes) turn += axis.id();
  int rank = 0;
  for (std::size_t d = strides_.size(); d-- > 0;) {
    bool sharded = std::ranges::any_of(
        axes, [&](const Axis& axis) { return plan_.shard_dimension(axis) == static_cast<int>(d); });
    if (sharded || axes.empty()) continue;
    int size = mesh_[d].second;
    rank += static_cast<int>(turn % size) * strides_[d];
    turn /= size;
  }
  // ... and go where the sharded ones say.
  for (std::size_t i = axes.size(); i-- > 0;) {
    rank = moved(rank, axes[i], tile % tiles(axes[i]));
    tile /= tiles(axes[i]);
  }
  return rank;
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

}  // namespace tegula
