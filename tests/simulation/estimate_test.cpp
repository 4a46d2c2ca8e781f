// Estimates against closed forms of the literature, for programs whose tasks take known times.
#include "framework/simulation/estimate.hpp"

#include <doctest/doctest.h>

#include <map>

#include "tests/simulation/plans.hpp"

using namespace tegula;
using simulation::Cluster;
using simulation::Estimate;
using test::EqualLayers;
using test::ideal;

namespace {

Estimate estimate(Graph& graph, const Plan& plan, const Cluster& cluster, int ranks) {
  simulation::Estimator estimator(cluster, cluster.seats(ranks));
  for (int rank = 0; rank < ranks; ++rank) estimator.add(lower(graph, plan, rank, ranks, {}));
  return estimator.run();
}

}  // namespace

TEST_CASE("pipelines take as long, and are as idle, as the literature says") {
  const Cluster cluster = simulation::parse_cluster(ideal, "ideal.toml");
  for (const int places : {4, 8}) {
    std::map<std::pair<std::string, int>, double> bubbles;
    for (const test::PipelineCase& c : test::pipeline_cases(places)) {
      CAPTURE(places);
      CAPTURE(c.micro_batches);
      CAPTURE(c.schedule.name);
      EqualLayers network(c.layers, c.micro_batches);
      const Estimate found = estimate(network.graph, network.plan(places, c.schedule), cluster, places);
      CHECK(found.seconds == doctest::Approx(c.work + c.bubble).epsilon(0.03));
      double idle = 0;
      for (const Estimate::Rank& rank : found.ranks) idle += rank.bubble / places;
      CHECK(idle == doctest::Approx(c.bubble / (c.work + c.bubble)).epsilon(0.03));
      bubbles[{c.schedule.name, c.micro_batches}] = idle * found.seconds;
    }
    for (const int m : {places, 2 * places, 4 * places})
      CHECK(bubbles.at({schedules::zero_bubble_h1().name, m}) <
            0.8 * bubbles.at({schedules::one_forward_one_backward().name, m}));
  }
}
