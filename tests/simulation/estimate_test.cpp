// Estimates against closed forms of the literature, for programs whose tasks take known times.
#include "framework/simulation/estimate.hpp"

#include <doctest/doctest.h>

#include <string>

#include "layers/layers.hpp"

using namespace tegula;
using simulation::Cluster;
using simulation::Estimate;

namespace {

// One core per node, which does nothing but products; no message takes time.
const char* const ideal = R"(
[device.core]
gflops = {f32 = 100}
bandwidth = 1e9
power = 3
idle-power = 1
[node.one]
cpu = "core"
cores = 1
memory = 64
network = {bandwidth = 1e9, latency = 0}
power = 10
[[nodes]]
type = "one"
count = 64
)";

Estimate estimate(Graph& graph, const Plan& plan, const Cluster& cluster, int ranks) {
  simulation::Estimator estimator(cluster, cluster.seats(ranks));
  for (int rank = 0; rank < ranks; ++rank) estimator.add(lower(graph, plan, rank, ranks, {}));
  return estimator.run();
}

// Layers that all cost the same, a product forward and two backward, on stages of their own.
struct EqualLayers {
  static constexpr std::int64_t width = 1024, rows = 1024;  // of a micro-batch
  Graph graph;
  Axis batch;
  std::vector<std::pair<std::string, int>> stages;

  EqualLayers(int layers, int micro_batches) : batch(graph.axis("batch", rows * micro_batches)) {
    Axis last = graph.axis("width", width);
    const Tensor first = graph.state("scale", f32, {last}, Initializer::uniform(1, 2));
    // The first layer has a gradient by its input, too.
    Tensor y = graph.input("x", f32, {batch, last}) * first;
    layers::Parameters parameters{first};
    for (int i = 0; i < layers; ++i) {
      const Axis next = graph.axis("width" + std::to_string(i), width);
      const layers::Linear layer(graph, "layer" + std::to_string(i), {last}, next);
      y = tanh(layer(y));
      parameters.push_back(layer.weight);
      stages.emplace_back("layer" + std::to_string(i), i);
      last = next;
    }
    layers::sgd(graph, sum(y * y), parameters);
  }
  Plan plan(int places, Schedule schedule) const {
    return Plan()
        .mesh({{"stage", places}})
        .tile(batch, rows)
        .stages("stage", stages)
        .micro_batches(batch, std::move(schedule));
  }
  static constexpr double product = 2.0 * width * width * rows / 100e9;  // seconds
};

}  // namespace

TEST_CASE("pipelines take as long, and are as idle, as the literature says") {
  const Cluster cluster = simulation::parse_cluster(ideal, "ideal.toml");
  constexpr double f = EqualLayers::product, w = f,
                   b = 2 * f;  // forward, gradients by weights, all gradients
  for (const int places : {4, 8})
    for (const int micro_batches : {places, 2 * places, 4 * places}) {
      CAPTURE(places);
      CAPTURE(micro_batches);
      auto check = [&](const Schedule& schedule, int layers, double work, double bubble) {
        CAPTURE(schedule.name);
        EqualLayers network(layers, micro_batches);
        const Estimate found = estimate(network.graph, network.plan(places, schedule), cluster, places);
        CHECK(found.seconds == doctest::Approx(work + bubble).epsilon(0.03));
        double idle = 0;
        for (const Estimate::Rank& rank : found.ranks) idle += rank.bubble / places;
        CHECK(idle == doctest::Approx(bubble / (work + bubble)).epsilon(0.03));
        return idle * found.seconds;
      };
      const double work = micro_batches * (f + b);
      // Huang et al. 2019, section 2.3; Narayanan et al. 2021, section 2.2.1: (p - 1) (t_f + t_b), whatever the order.
      check(schedules::gpipe(), places, work, (places - 1) * (f + b - w));
      const double bubble =
          check(schedules::one_forward_one_backward(), places, work, (places - 1) * (f + b - w));
      // The same, section 2.2.2, with v = 2 parts on each place: 1 / v of it.
      check(schedules::interleaved(), 2 * places, 2 * work, (places - 1) * (f + b - w));
      // Qi et al. 2024, table 2: (p - 1) (T_F + T_B - T_W), where T_B is of the gradient by the input alone.
      const double shorter =
          check(schedules::zero_bubble_h1(), places, work, (places - 1) * (f + (b - w) - w));
      CHECK(shorter < 0.8 * bubble);
    }
}
