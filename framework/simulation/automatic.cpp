// The automatic plan: a few tilings are compiled for rank 0 and the one that is estimated to run fastest is taken; of those that
// the estimate cannot tell apart, the one that needs the least memory.
#include <algorithm>
#include <stdexcept>
#include <vector>

#include "framework/program/listing.hpp"
#include "framework/runtime/runtime.hpp"
#include "framework/simulation/estimate.hpp"

namespace tegula {

namespace {

// The inner axes of a network: between states, as hidden layers and channels, of no input.
Axes inner_axes_of(Graph& graph) {
  Axes inner;
  for (const Axis& axis : graph.axes()) {
    bool input = false, value = false;
    int states = 0;
    for (int id = 0; id < static_cast<int>(graph.tensors().size()); ++id) {
      Tensor tensor = graph.tensor(id);
      if (!tensor.has(axis)) continue;
      input |= tensor.info().kind == TensorInfo::Kind::input;
      value |= tensor.info().kind == TensorInfo::Kind::value;
      states += tensor.info().kind == TensorInfo::Kind::state;
    }
    if (!input && value && states > 1) inner.push_back(axis);
  }
  return inner;
}

std::int64_t tile_for(std::int64_t extent, std::int64_t tiles) { return (extent + tiles - 1) / tiles; }

}  // namespace

Plan Plan::automatic(Graph& graph, const Runtime& runtime) {
  return automatic(graph, runtime.size(), std::max(runtime.cpu_workers() + runtime.gpus(), 1));
}

Plan Plan::automatic(Graph& graph, int ranks, int workers_per_rank) {
  Plan base;
  base.mesh({{"data", ranks}});
  const Axes data = graph.data_axes(), inner_axes = inner_axes_of(graph);
  if (data.empty()) return base;
  const Axis batch = data.front();
  base.shard(batch, "data");

  // The batch in a number of tiles per rank, the inner axes in none or some: below 64 a tile is too small for a fast product.
  constexpr std::int64_t smallest_inner_tile = 64;
  constexpr double apart = 1.03;  // what estimates differ by if they say anything
  struct Candidate {
    Plan plan;
    double time;
    std::int64_t bytes;
  };
  std::vector<Candidate> candidates;
  for (int per_rank : {1, workers_per_rank, 2 * workers_per_rank, 4 * workers_per_rank})
    for (int inner : {1, workers_per_rank, 2 * workers_per_rank})
      for (bool chain : {true, false}) {
        std::int64_t tiles = std::min<std::int64_t>(batch.extent(), std::int64_t{ranks} * per_rank);
        if (!chain && tiles == ranks) continue;  // one tile per rank: no chain to break
        Plan plan = base;
        plan.tile(batch, tile_for(batch.extent(), std::max<std::int64_t>(tiles, 1)));
        plan.group(batch, chain ? per_rank : 1);
        bool any = inner == 1;
        for (const Axis& axis : inner_axes)
          if (axis.extent() >= inner * smallest_inner_tile) {
            plan.tile(axis, tile_for(axis.extent(), inner));
            plan.group(axis, inner);
            any = true;
          }
        if (!any) continue;
        try {
          const Listing listing = lower(graph, plan, 0, ranks, {});
          simulation::Estimator estimator(simulation::typical_core(), workers_per_rank);
          estimator.add(listing);
          candidates.push_back({plan, estimator.run().seconds, listing.peak_bytes});
        } catch (const std::invalid_argument&) {
          // An op that needs one of the axes whole: not this tiling.
        }
      }
  if (candidates.empty()) return base;
  const double least = std::ranges::min(candidates, {}, &Candidate::time).time;
  std::erase_if(candidates, [&](const Candidate& c) { return c.time > least * apart; });
  return std::ranges::min(candidates, {}, &Candidate::bytes).plan;
}

}  // namespace tegula
