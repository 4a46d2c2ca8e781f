// Runs under SimGrid, started by simgrid_test: prints what a step takes, for pipelines or for random plans.
//
//   simulated_plans pipelines | simulated_plans random FIRST COUNT
#include <fmt/format.h>
#include <starpu.h>

#include <cstdlib>
#include <cstring>
#include <tegula/tegula.hpp>

#include "tests/simulation/plans.hpp"

using namespace tegula;

namespace {

// Seconds per step where steps follow each other, as in a job: what two more take.
double step_seconds(Runtime& runtime, Graph& graph, const Plan& plan) {
  Program program = compile(graph, plan, runtime, {});
  for (int id = 0; id < static_cast<int>(graph.tensors().size()); ++id)
    if (const Tensor tensor = graph.tensor(id); tensor.info().kind == TensorInfo::Kind::input)
      program.bind(tensor, [](const TileRegion&, void*) {});
  double took[2] = {0, 0};
  for (const int pass : {0, 1}) {
    runtime.wait();
    runtime.barrier();
    const double start = starpu_timing_now();
    for (int step = 0; step < 2 + 2 * pass; ++step) program.run({{"learning_rate", 0.1}});
    runtime.wait();
    runtime.barrier();
    took[pass] = starpu_timing_now() - start;
  }
  return (took[1] - took[0]) / 2 * 1e-6;
}

}  // namespace

int main(int argc, char** argv) {
  return run([&] {
    Runtime runtime(argc, argv);
    auto print = [&](double seconds) {
      if (runtime.rank() == 0) fmt::print("{:.9g}\n", seconds);
    };
    if (argc > 1 && std::strcmp(argv[1], "pipelines") == 0)
      for (const test::PipelineCase& c : test::pipeline_cases(runtime.size())) {
        test::EqualLayers network(c.layers, c.micro_batches);
        print(step_seconds(runtime, network.graph, network.plan(c.places, c.schedule)));
      }
    else
      for (int i = 0; i < std::atoi(argv[3]); ++i) {
        test::RandomPlan made(static_cast<unsigned>(std::atoi(argv[2]) + i));
        print(step_seconds(runtime, made.network.graph, made.plan));
      }
    return 0;
  });
}
