#include "framework/plan/plans.hpp"

#include <algorithm>
#include <set>
#include <stdexcept>

namespace tegula::plans {

namespace {

// All of every axis, for one element of the batch: a node's work in one task, which a whole batch would be too large for.
class OneSample final : public TileRange {
 public:
  explicit OneSample(Graph& graph) : data_(graph.data_axes()) {}
  std::int64_t begin(const Axis&) const override { return 0; }
  std::int64_t extent(const Axis& axis) const override {
    return !data_.empty() && axis.original() == data_[0] ? 1 : axis.original().extent();
  }
  std::int64_t full_extent(const Axis& axis) const override { return extent(axis); }
  std::int64_t tile(const Axis&) const override { return 0; }
  bool first() const override { return true; }
  bool last() const override { return true; }

 private:
  Axes data_;
};

}  // namespace

Plan data_parallel(const Axis& batch, int ranks, std::int64_t size) {
  Plan plan;
  plan.mesh({{"data", ranks}}).shard(batch, "data");
  const std::int64_t share = std::max<std::int64_t>((batch.extent() + ranks - 1) / ranks, 1);
  if (size == 0) size = share;
  plan.tile(batch, size);
  return plan.group(batch, static_cast<int>((share + size - 1) / size));
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
  follow(plan, graph, axis);
  return plan;
}

void follow(Plan& plan, Graph& graph, const Axis& axis) {
  const std::int64_t size = plan.tile_size(axis), tiles = (axis.extent() + size - 1) / size;
  std::vector<std::string> dimensions;
  for (const int dimension : plan.shard_dimensions(axis, false))
    dimensions.push_back(plan.mesh()[dimension].first);
  std::set<int> followed{axis.id()};
  // Again, as long as there are more: joined axes may come before what they are made along.
  for (std::size_t before = 0; before < followed.size();) {
    before = followed.size();
    for (const Axis& other : graph.axes()) {
      const std::optional<Axis> along = other.along();
      if (!along || !followed.contains(along->id()) || !followed.insert(other.id()).second) continue;
      plan.tile(other, std::max<std::int64_t>(1, (other.extent() + tiles - 1) / tiles));
      if (!dimensions.empty()) plan.shard(other, dimensions);
    }
  }
}

std::vector<std::pair<std::string, int>> even_stages(Graph& graph, int stages) {
  if (stages < 1)
    throw std::invalid_argument("[plan] the number of stages is " + std::to_string(stages) +
                                "; it must be at least 1");
  std::vector<std::pair<std::string, double>> layers;  // with flops
  for (const std::string& layer : graph.layers()) layers.emplace_back(layer, 0);
  double total = 0;
  const OneSample sample(graph);
  for (const Node& node : graph.nodes()) {
    const std::string scope = node.scope.substr(0, node.scope.find('.'));
    auto layer = std::ranges::find(layers, scope, &std::pair<std::string, double>::first);
    if (layer == layers.end() || node.outputs.empty() || node.scope.starts_with(gradient_scope)) continue;
    const TaskSpec task = node.semantics->task(node, sample);
    const double flops = task.op->flops(task.attributes.data());
    layer->second += flops;
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
