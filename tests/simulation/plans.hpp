// Networks and plans whose steps are both estimated and simulated.
#pragma once

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "layers/layers.hpp"

namespace tegula::test {

// One core per node, which does nothing but products; no message takes time.
inline constexpr const char* ideal = R"(
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

// Layers that all cost the same, a product forward and two backward, on stages of their own.
struct EqualLayers {
  Graph graph;
  Axis batch;
  std::vector<std::pair<std::string, int>> stages;
  std::int64_t rows, width;  // of a micro-batch

  EqualLayers(int layers, int micro_batches, std::int64_t rows_ = 1024, std::int64_t width_ = 1024)
      : batch(graph.axis("batch", rows_ * micro_batches)), rows(rows_), width(width_) {
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
  static constexpr double product = 2.0 * 1024 * 1024 * 1024 / 100e9;  // seconds
};

// A pipeline and what the literature says of its step: the work of each place, and the bubble, in seconds.
struct PipelineCase {
  Schedule schedule;
  int layers, places, micro_batches;
  double work, bubble;
};
inline std::vector<PipelineCase> pipeline_cases(int p) {
  constexpr double f = EqualLayers::product, w = f,
                   b = 2 * f;  // forward, gradients by weights, all gradients
  std::vector<PipelineCase> cases;
  for (const int m : {p, 2 * p, 4 * p}) {
    const double work = m * (f + b);
    // Huang et al. 2019, section 2.3; Narayanan et al. 2021, section 2.2.1: (p - 1) (t_f + t_b), whatever the order.
    cases.push_back({schedules::gpipe(), p, p, m, work, (p - 1) * (f + b - w)});
    cases.push_back({schedules::one_forward_one_backward(), p, p, m, work, (p - 1) * (f + b - w)});
    // The same, section 2.2.2, with v = 2 parts on each place: 1 / v of it.
    cases.push_back({schedules::interleaved(), 2 * p, p, m, 2 * work, (p - 1) * (f + b - w)});
    // Qi et al. 2024, table 2: (p - 1) (T_F + T_B - T_W), where T_B is of the gradient by the input alone.
    cases.push_back({schedules::zero_bubble_h1(), p, p, m, work, (p - 1) * (f + (b - w) - w)});
  }
  return cases;
}

// Nodes of two cores whose messages take time.
inline constexpr const char* small_nodes = R"(
[device.core]
gflops = {f32 = 100}
bandwidth = 10
overhead = 5
[node.two]
cpu = "core"
cores = 2
memory = 64
network = {bandwidth = 2, latency = 20}
[[nodes]]
type = "two"
count = 4
)";

// One of many ways to cut and place a few layers on four ranks.
struct RandomPlan {
  std::mt19937 random;
  EqualLayers network;
  Plan plan;
  std::string name;

  explicit RandomPlan(unsigned seed) : random(seed), network(make()) {
    auto& [graph, batch, stages, rows, width] = network;
    const bool whole = pick({true, false});
    // Every other axis on the tensor dimension, as a weight has two.
    auto cut = [&](const char* dimension) {
      for (std::size_t i = 0; i < stages.size(); ++i) {
        const Axis axis = *graph.find_axis("width" + std::to_string(i));
        if (dimension && i % 2 == 0)
          plan.tile(axis, width / 2).shard(axis, dimension);
        else if (!whole)
          plan.tile(axis, width / 2);
      }
    };
    const std::string form = pick({"data", "data x tensor", "stages", "data x stages"});
    name = form + (whole ? "" : ", cut");
    const Schedule schedule =
        pick({schedules::gpipe(), schedules::one_forward_one_backward(), schedules::zero_bubble_h1()});
    plan.tile(batch, rows);
    if (form == "data") {
      plan.mesh({{"data", 4}}).shard(batch, "data");
      cut(nullptr);
    } else if (form == "data x tensor") {
      plan.mesh({{"data", 2}, {"tensor", 2}}).shard(batch, "data");
      cut("tensor");
    } else {
      const int places = form == "stages" ? 4 : 2;
      plan.mesh({{"data", 4 / places}, {"stage", places}}).shard(batch, "data");
      std::vector<std::pair<std::string, int>> placed = stages;
      for (auto& stage : placed) stage.second = stage.second * places / static_cast<int>(placed.size());
      plan.stages("stage", placed).micro_batches(batch, schedule);
      name += ", " + schedule.name;
      cut(nullptr);
    }
  }

 private:
  template <class T>
  T pick(std::initializer_list<T> all) {
    return *(all.begin() + random() % all.size());
  }
  EqualLayers make() {
    const int layers = pick({4, 8}), micro_batches = pick({4, 8, 16});
    const std::int64_t rows = pick<std::int64_t>({64, 128, 256});
    return {layers, micro_batches, rows, pick<std::int64_t>({256, 512, 768})};
  }
};

}  // namespace tegula::test
