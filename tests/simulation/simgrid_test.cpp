// Steps simulated by SimGrid against closed forms, and against the estimator.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <sstream>
#include <vector>

#include "framework/io/file.hpp"
#include "framework/simulation/estimate.hpp"
#include "framework/simulation/platform.hpp"
#include "tests/simulation/plans.hpp"

using namespace tegula;

namespace {

// The numbers that simulated_plans prints.
std::vector<double> simulate(const char* cluster, int ranks, std::vector<std::string> arguments) {
  std::string folder = std::filesystem::temp_directory_path() / "tegula-simgrid-XXXXXX";
  REQUIRE(mkdtemp(folder.data()) != nullptr);
  const std::filesystem::path file = std::filesystem::path(folder) / "cluster.toml";
  io::write_file(file, cluster);
  const char* program = std::getenv("SIMULATED_PLANS");
  REQUIRE_MESSAGE(program != nullptr, "SIMULATED_PLANS names the program to simulate");
  std::string line;
  for (const std::string& word : simulation::prepare(
           {.cluster_file = file, .ranks = ranks, .program = program, .arguments = std::move(arguments)},
           folder))
    line += "'" + word + "' ";
  FILE* pipe = popen(line.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string output;
  std::array<char, 4096> part;
  while (const std::size_t count = std::fread(part.data(), 1, part.size(), pipe))
    output.append(part.data(), count);
  CHECK(pclose(pipe) == 0);
  std::filesystem::remove_all(folder);
  std::vector<double> numbers;
  std::istringstream in(output);
  for (double number; in >> number;) numbers.push_back(number);
  return numbers;
}

// Kendall's tau, of two lists of numbers without ties to speak of.
double tau(const std::vector<double>& x, const std::vector<double>& y) {
  double agreeing = 0, pairs = 0;
  for (std::size_t i = 0; i < x.size(); ++i)
    for (std::size_t j = 0; j < i; ++j, ++pairs) {
      const double product = (x[i] - x[j]) * (y[i] - y[j]);
      agreeing += product > 0 ? 1 : product < 0 ? -1 : 0;
    }
  return agreeing / pairs;
}

}  // namespace

TEST_CASE("simulated pipelines take as long, and are as idle, as the literature says") {
  for (const int places : {4, 8}) {
    const std::vector<test::PipelineCase> cases = test::pipeline_cases(places);
    const std::vector<double> seconds = simulate(test::ideal, places, {"pipelines"});
    REQUIRE(seconds.size() == cases.size());
    std::map<std::pair<std::string, int>, double> bubbles;
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const test::PipelineCase& c = cases[i];
      CAPTURE(places);
      CAPTURE(c.micro_batches);
      CAPTURE(c.schedule.name);
      CHECK(seconds[i] == doctest::Approx(c.work + c.bubble).epsilon(0.03));
      const double bubble = seconds[i] - c.work;  // all places work as long
      CHECK(bubble / seconds[i] == doctest::Approx(c.bubble / (c.work + c.bubble)).epsilon(0.03));
      bubbles[{c.schedule.name, c.micro_batches}] = bubble;
    }
    for (const int m : {places, 2 * places, 4 * places})
      CHECK(bubbles.at({schedules::zero_bubble_h1().name, m}) <
            0.8 * bubbles.at({schedules::one_forward_one_backward().name, m}));
  }
}

TEST_CASE("the estimator agrees with SimGrid on random plans") {
  constexpr int plans = 50;
  const simulation::Cluster cluster = simulation::parse_cluster(test::small_nodes, "small.toml");
  const std::vector<double> simulated =
      simulate(test::small_nodes, 4, {"random", "1", std::to_string(plans)});
  REQUIRE(simulated.size() == plans);
  std::vector<double> estimated, errors;
  for (unsigned seed = 1; seed <= plans; ++seed) {
    test::RandomPlan made(seed);
    simulation::Estimator estimator(cluster, cluster.seats(4));
    for (int rank = 0; rank < 4; ++rank) estimator.add(lower(made.network.graph, made.plan, rank, 4, {}));
    estimated.push_back(estimator.run().seconds);
    errors.push_back(std::abs(estimated.back() / simulated[seed - 1] - 1));
    MESSAGE(made.name << ": estimated " << estimated.back() << " s, simulated " << simulated[seed - 1]
                      << " s");
  }
  std::ranges::nth_element(errors, errors.begin() + plans / 2);
  MESSAGE("median difference " << errors[plans / 2] << ", Kendall's tau " << tau(estimated, simulated));
  CHECK(errors[plans / 2] < 0.05);
  CHECK(tau(estimated, simulated) >= 0.9);
}
