// build/bench/lower: what compiling one rank's program takes, by number of ranks. It is to grow with the tasks of that rank, not
// with those of the job: see docs/decisions.md, "Placement".
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "framework/plan/plans.hpp"
#include "framework/program/listing.hpp"
#include "layers/transformer.hpp"

using namespace tegula;

int main() {
  std::printf(
      "48-layer GPT (1600 wide, 1.6e9 parameters), context 1024, 4 micro-batches of 1 per rank, 1F1B, "
      "AdamW\n");
  std::printf(" ranks  data  tensor  stage    tasks  buffers   messages   seconds (median of 3)\n");
  struct Mesh {
    int data, tensor, stage;
  };
  for (const auto& [data, tensor, stage] : {Mesh{4, 1, 1}, Mesh{1, 4, 1}, Mesh{1, 1, 4}, Mesh{4, 4, 4},
                                            Mesh{64, 8, 8}, Mesh{512, 8, 1}, Mesh{4096, 1, 1}}) {
    Graph g;
    const Axis batch = g.axis("batch", std::int64_t{4} * data), sequence = g.axis("sequence", 1024),
               vocabulary = g.axis("vocabulary", 50257);
    const Tensor tokens = g.input("tokens", DType::i32, {batch, sequence}),
                 target = g.input("target", DType::i32, {batch, sequence});
    layers::Transformer model(
        g, {.layers = 48, .heads = 16, .key_value_heads = 16, .head_dim = 100, .hidden = 6400}, sequence,
        vocabulary);
    const Tensor loss = layers::cross_entropy(model(tokens), target);
    layers::adamw(g, loss, model.parameters());
    Plan plan;
    plan.mesh({{"data", data}, {"tensor", tensor}, {"stage", stage}})
        .tile(batch, 1)
        .group(batch, 4)
        .shard(batch, "data");
    for (const char* name : {"head", "hidden", "vocabulary"}) {
      const Axis axis = g.find_axis(name).value();
      plan.tile(axis, (axis.extent() + tensor - 1) / tensor).shard(axis, "tensor");
    }
    plan.stages("stage", plans::even_stages(g, stage))
        .micro_batches(batch, schedules::one_forward_one_backward());
    const int ranks = data * tensor * stage;
    std::vector<double> seconds;
    Listing listing;
    for (int i = 0; i < 3; ++i) {
      const auto start = std::chrono::steady_clock::now();
      listing = lower(g, plan, ranks / 2, ranks, {.outputs = {loss}});
      seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    std::ranges::sort(seconds);
    const auto messages = std::ranges::count_if(listing.instructions, [](const Instruction& i) {
      return i.kind == Instruction::Kind::send || i.kind == Instruction::Kind::receive;
    });
    std::printf("%6d %5d %7d %6d %8lld %8zu %10lld %9.3f\n", ranks, data, tensor, stage,
                static_cast<long long>(listing.tasks), listing.buffers.size(),
                static_cast<long long>(messages), seconds[1]);
  }
}
