// Trains small networks for a few steps and prints, on rank 0, every bit of their losses and parameters: same_bits_test.py
// compares what different numbers of ranks and workers and different schedulers print. Also holds the bytes that listings
// predict against those that StarPU counted, sent and allocated.
//
//     training WORKERS SCHEDULER [bad-label]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "framework/plan/plans.hpp"
#include "tests/program/networks.hpp"

using namespace tegula;

namespace {

constexpr int steps = 5;

std::uint64_t hash_of(const std::vector<double>& values) {  // FNV-1a
  std::uint64_t hash = 0xcbf29ce484222325U;
  std::vector<unsigned char> bytes(values.size() * sizeof(double));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  for (unsigned char byte : bytes) hash = (hash ^ byte) * 0x100000001b3U;
  return hash;
}

void train(const std::string& name, test::Network& network, const Plan& plan, Runtime& runtime) {
  runtime.wait();  // for what an earlier program has left
  runtime.barrier();
  const std::int64_t memory_before = runtime.tile_bytes();
  Program program = compile(network.graph, plan, runtime, {.outputs = {network.loss}});
  network.bind(program, network.batch.extent(), 1);
  runtime.wait();
  runtime.barrier();
  const Runtime::Traffic before = runtime.traffic();
  std::vector<Result> results;
  for (int step = 0; step < steps; ++step)
    results.push_back(program.run({{"learning_rate", 0.1 / (1 + step)}}));
  runtime.wait();
  runtime.barrier();

  const Runtime::Traffic after = runtime.traffic();
  const auto sent = static_cast<std::int64_t>(after.sent - before.sent);
  const auto received = static_cast<std::int64_t>(after.received - before.received);
  const Listing& listing = program.listing();
  if (sent != steps * listing.sent_bytes || received != steps * listing.received_bytes)
    throw std::logic_error(name + ": rank " + std::to_string(runtime.rank()) + " sent " +
                           std::to_string(sent) + " and received " + std::to_string(received) +
                           " bytes, predicted were " + std::to_string(steps * listing.sent_bytes) + " and " +
                           std::to_string(steps * listing.received_bytes));

  // Scratch may be there from an earlier program, and is not of workers that have run no task with any.
  const std::int64_t memory = runtime.tile_bytes() - memory_before;
  if (memory < listing.peak_bytes || memory > program.peak_bytes())
    throw std::logic_error(name + ": rank " + std::to_string(runtime.rank()) + " has " +
                           std::to_string(memory) + " bytes of tiles, predicted were " +
                           std::to_string(listing.peak_bytes) + " to " +
                           std::to_string(program.peak_bytes()));

  if (runtime.rank() == 0)
    for (const Result& result : results)
      std::printf("%s: loss %a\n", name.c_str(), result.value(network.loss));
  for (const Tensor& parameter : network.parameters) {
    const std::vector<double> values = program.read(parameter);
    if (runtime.rank() == 0)
      std::printf("%s: %s %016llx\n", name.c_str(), parameter.name().c_str(),
                  static_cast<unsigned long long>(hash_of(values)));
  }
}

}  // namespace

int main(int argc, char** argv) {
  return tegula::run([&] {
    if (argc < 3) throw std::invalid_argument("usage: training WORKERS SCHEDULER [bad-label]");
    Runtime runtime(argc, argv,
                    {.cpu_workers = std::atoi(argv[1]), .scheduler = argv[2], .print_table = false});
    test::Mlp mlp(12);
    layers::adamw(mlp.graph, mlp.loss, mlp.parameters, {.weight_decay = 0.01});
    Plan plan;
    plan.tile(mlp.batch, 2)
        .tile(mlp.axis("hidden1"), 4)
        .tile(mlp.axis("hidden2"), 4)
        .tile(mlp.axis("pixel"), 5);
    plan.mesh({{"ranks", runtime.size()}});

    if (argc > 3) {
      Program program = compile(mlp.graph, plan.shard(mlp.batch, "ranks"), runtime, {.outputs = {mlp.loss}});
      mlp.bind(program, 12, 1);
      std::vector<std::int32_t> labels(12, 0);
      labels[11] = 5;  // of the tile that the last rank has, row 1 there
      program.bind(mlp.target, labels);
      for (int step = 0; step < steps; ++step) program.run({{"learning_rate", 0.1}});
      runtime.wait();
      return 0;
    }
    train("mlp, dealt out", mlp, plan, runtime);
    train("mlp, batch sharded", mlp, Plan(plan).shard(mlp.batch, "ranks"), runtime);
    train("mlp, hidden1 sharded", mlp, Plan(plan).shard(mlp.axis("hidden1"), "ranks"), runtime);
    // Two dimensions where there are four ranks: factors of products travel along rows and columns.
    const int rows = runtime.size() % 4 == 0 ? 2 : 1;
    Plan square = plan;
    square.mesh({{"row", rows}, {"column", runtime.size() / rows}}).shard(mlp.batch, "row");
    for (const char* hidden : {"hidden1", "hidden2"})
      square.shard(mlp.axis(hidden), "column", Placed::activations);
    square.shard(mlp.axis("hidden1"), "column", Placed::parameters)
        .shard(mlp.axis("hidden2"), "row", Placed::parameters);
    train("mlp, rows and columns", mlp, square, runtime);
    train("mlp, recomputed", mlp, Plan(square).recompute({""}), runtime);

    // One stage per rank; with one rank all are there.
    const int last = runtime.size() - 1;
    plan.mesh({{"stage", runtime.size()}})
        .stages(
            "stage",
            {{"linear1", 0}, {"linear2", std::min(1, last)}, {"linear3", std::min(2, last)}, {"loss", last}});
    for (const std::string& name : schedules::names())
      train("mlp, " + name, mlp, Plan(plan).micro_batches(mlp.batch, schedules::find(name)), runtime);

    test::Mlp whole(12);
    layers::sgd(whole.graph, whole.loss, whole.parameters);
    train("mlp, classes cut", whole, Plan().tile(whole.batch, 3).tile(whole.label, 2).group(whole.batch, 2),
          runtime);

    test::Cnn cnn(12);
    layers::sgd(cnn.graph, cnn.loss, cnn.parameters, {.momentum = 0.9, .nesterov = true});
    Plan images;
    images.tile(cnn.batch, 2)
        .tile(cnn.axis("map2"), 2)
        .mesh({{"ranks", runtime.size()}})
        .shard(cnn.batch, "ranks");
    train("cnn, batch sharded", cnn, images, runtime);
    train("cnn, in parts", cnn,
          plans::spatial(cnn.graph, cnn.axis("height"), 2, runtime.size()).tile(cnn.batch, 5), runtime);
    return 0;
  });
}
