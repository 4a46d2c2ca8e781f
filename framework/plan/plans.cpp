#include "framework/plan/plans.hpp"

#include <algorithm>
#include <set>
#include <stdexcept>

namespace tegula::plans {

namespace {

// All of every axis: what a node does in one task.
class Whole final : public TileRange {
 public:
  std::int64_t begin(const Axis&) const override { return 0; }
  std::int64_t extent(const Axis& axis) const override { return axis.extent(); }
  std::int64_t full_extent(const Axis& axis) const override { return axis.extent(); }
  std::int64_t tile(const Axis&) const override { return 0; }
  bool first() const override { return true; }
  bool last() const override { return true; }
};

}  // namespace

Plan data_parallel(const Axis& batch, int ranks) {
  return Plan().mesh({{"data", ranks}}).shard(batch, "data");
}

Plan tensor_parallel(const Axes& axes, int ranks) {
  Plan plan;
  plan.mesh({{"tensor", ranks}});
  for (const Axis& axis : axes) plan.tile(axis, (axis.extent() + ranks - 1) / ranks).shard(axis, "tensor");
  return plan;
}

Plan pipeline(Graph& graph, const Axis& batch, std::int64_t size, int ranks, Schedule schedule, int parts) {
  Plan plan;
  plan.mesh({{"stage", ranks}}).stages("stage", even_stages(graph, ranks * parts));
  return plan.tile(batch, size).micro_batches(batch, std::move(schedule));
}

Plan mesh_3d(const Axis& batch, const Axes& inner, const Axes& outer, int side) {
  Plan plan;
  plan.mesh({{"x", side}, {"y", side}, {"z", side}});
  auto along = [&](const Axis& axis, const char* dimension) {
    plan.tile(axis, (axis.extent() + side - 1) / side).group(axis, 1).shard(axis, dimension);
  };
  along(batch, "x");
  for (const Axis& axis : inner) along(axis, "y");
  for (const Axis& axis : outer) along(axis, "z");
  return plan;
}

Plan spatial(Graph& graph, const Axis& axis, std::int64_t tile, int ranks) {
  Plan plan;
  plan.mesh({{"space", ranks}}).tile(axis, tile).shard(axis, "space");
  const std::int64_t tiles = (axis.extent() + tile - 1) / tile;
  std::set<int> followed{axis.id()};
  // Again, as long as there are more: joined axes may come before what they are made along.
  for (std::size_t before = 0; before < followed.size();) {
    before = followed.size();
    for (const Axis& other : graph.axes()) {
      const std::optional<Axis> along = other.along();
      if (!along || !followed.contains(along->id()) || !followed.insert(other.id()).second) continue;
      plan.tile(other, std::max<std::int64_t>(1, (other.extent() + tiles - 1) / tiles)).shard(other, "space");
    }
  }
  return plan;
}

std::vector<std::pair<std::string, int>> even_stages(Graph& graph, int stages) {
  if (stages < 1)
    throw std::invalid_argument("[plan] the number of stages is " + std::to_string(stages) +
                                "; it must be at least 1");
  std::vector<std::pair<std::string, double>> layers;  // with flops
  double total = 0;
  for (const Node& node : graph.nodes()) {
    const std::string layer = node.scope.substr(0, node.scope.find('.'));
    if (layer.empty() || node.outputs.empty() || layer == "update" || node.scope.starts_with(gradient_scope))
      continue;
    auto place = std::ranges::find(layers, layer, &std::pair<std::string, double>::first);
    if (place == layers.end()) place = layers.emplace(layers.end(), layer, 0);
    const TaskSpec task = node.semantics->task(node, Whole());
    const double flops = task.op->flops(task.attributes.data());
    place->second += flops;
    total += flops;
  }
  std::vector<std::pair<std::string, int>> result;
  double before = 0;
  for (const auto& [layer, flops] : layers) {
    const int left = static_cast<int>(layers.size() - result.size()),
              last = result.empty() ? -1 : result.back().second;
    const int fair = total > 0 ? static_cast<int>(stages * (before + flops / 2) / total) : 0;
    // No stage is left out, so far as the layers suffice.
    const int stage =
        std::max(std::clamp(fair, std::max(last, 0), last + 1), std::min(stages - left, last + 1));
    result.emplace_back(layer, std::min(stage, stages - 1));
    before += flops;
  }
  return result;
}

}  // namespace tegula::plans
