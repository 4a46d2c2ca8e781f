// Programs as their users meet them: what they compute, share, refuse and report. Every rank runs every test case.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <fstream>
#include <functional>
#include <memory>
#include <thread>

#include "framework/program/block.hpp"
#include "tests/program/networks.hpp"

using namespace tegula;

namespace {

RuntimeOptions quiet() { return {.cpu_workers = 1, .print_table = false}; }

template <class Error = std::invalid_argument>
std::string message(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "(no error)";
}

// Batch in tiles of 2, other axes in tiles of 4, the batch sharded over all ranks.
Plan sharded(test::Network& network, const Runtime& runtime) {
  Plan plan;
  for (const Axis& axis : network.graph.axes()) plan.tile(axis, axis == network.batch ? 2 : 4);
  return plan.tile(network.label, 5).mesh({{"data", runtime.size()}}).shard(network.batch, "data");
}

std::int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::int64_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident * 4096;
}

}  // namespace

TEST_CASE("optimizers do in tiles what their formulas say") {
  Runtime runtime(0, nullptr, quiet());
  Graph g;
  Axis i = g.axis("i", 5), j = g.axis("j", 3);
  // loss = sum of (curvature w^2 / 2) over all parameters: the gradient is curvature w.
  Tensor curvature = g.state("curvature", f64, {i, j}, Initializer::uniform(0.5, 2));
  std::vector<Tensor> w;
  for (const char* name : {"plain", "nesterov", "adamw", "adam"})
    w.push_back(g.state(name, f64, {i, j}, Initializer::normal(0, 1)));
  Tensor loss;
  for (const Tensor& x : w)
    loss = loss ? loss + sum(0.5 * (curvature * x * x)) : sum(0.5 * (curvature * x * x));

  const double decay = 0.1, mu = 0.9, beta1 = 0.8, beta2 = 0.95, epsilon = 1e-6;
  layers::sgd(g, loss, {w[0]});
  layers::sgd(g, loss, {w[1]}, {.momentum = mu, .weight_decay = decay, .nesterov = true});
  layers::adamw(g, loss, {w[2]}, {.beta1 = beta1, .beta2 = beta2, .epsilon = epsilon, .weight_decay = decay});
  Tensor m = g.state("m", f64, {i, j}), v = g.state("v", f64, {i, j});
  adam(w[3], m, v, gradients(loss, std::vector{w[3]})[0],
       {.beta1 = beta1, .beta2 = beta2, .epsilon = epsilon, .weight_decay = decay, .decoupled = false});

  Program program = compile(g, Plan().tile(i, 2).tile(j, 2), runtime, {.outputs = {loss}});
  const std::vector<double> a = program.read(curvature);
  std::vector<std::vector<double>> x;
  for (const Tensor& parameter : w) x.push_back(program.read(parameter));
  std::vector<double> momentum(a.size()), m2(a.size()), v2(a.size()), m3(a.size()), v3(a.size());
  for (int step = 1; step <= 6; ++step) {
    const double rate = 0.1 / step;
    Result result = program.run({{"learning_rate", rate}});
    double expected = 0;
    for (std::size_t e = 0; e < a.size(); ++e) {
      for (const auto& values : x) expected += a[e] * values[e] * values[e] / 2;
      x[0][e] -= rate * a[e] * x[0][e];
      const double d = a[e] * x[1][e] + decay * x[1][e];
      momentum[e] = mu * momentum[e] + d;
      x[1][e] -= rate * (d + mu * momentum[e]);
      auto adam_step = [&](double& value, double gradient, double& first, double& second) {
        first = beta1 * first + (1 - beta1) * gradient;
        second = beta2 * second + (1 - beta2) * gradient * gradient;
        value -= rate * (first / (1 - std::pow(beta1, step))) /
                 (std::sqrt(second / (1 - std::pow(beta2, step))) + epsilon);
      };
      const double gradient = a[e] * x[2][e];
      x[2][e] *= 1 - rate * decay;
      adam_step(x[2][e], gradient, m2[e], v2[e]);
      adam_step(x[3][e], a[e] * x[3][e] + decay * x[3][e], m3[e], v3[e]);
    }
    if (runtime.rank() == 0) CHECK(result.value(loss) == doctest::Approx(expected).epsilon(1e-12));
  }
  for (std::size_t k = 0; k < w.size(); ++k) {
    const std::vector<double> values = program.read(w[k]);
    double difference = 0;
    for (std::size_t e = 0; e < values.size(); ++e)
      difference = std::max(difference, std::abs(values[e] - x[k][e]));
    CHECK(difference < 1e-12);
  }
}

TEST_CASE("two networks in flight together do not take each other's messages") {
  Runtime runtime(0, nullptr, quiet());
  std::vector<std::unique_ptr<test::Mlp>> networks;
  std::vector<Program> programs;
  for (int i = 0; i < 4; ++i) {
    test::Mlp& network = *networks.emplace_back(std::make_unique<test::Mlp>(12));
    layers::sgd(network.graph, network.loss, network.parameters);
    programs.push_back(
        compile(network.graph, sharded(network, runtime), runtime, {.outputs = {network.loss}}));
    network.bind(programs[i], 12, i % 2);
  }
  std::vector<Result> results[4];
  for (int i : {0, 1}) {  // one after the other
    for (int step = 0; step < 30; ++step) results[i].push_back(programs[i].run({{"learning_rate", 0.1}}));
    runtime.wait();
    runtime.barrier();
  }
  for (int step = 0; step < 30; ++step)  // side by side
    for (int i : {2, 3}) results[i].push_back(programs[i].run({{"learning_rate", 0.1}}));
  for (int i : {0, 1}) {
    for (int step = 0; runtime.rank() == 0 && step < 30; ++step)
      CHECK(results[i + 2][step].value(networks[i + 2]->loss) == results[i][step].value(networks[i]->loss));
    for (std::size_t k = 0; k < networks[i]->parameters.size(); ++k)
      CHECK(programs[i + 2].read(networks[i + 2]->parameters[k]) ==
            programs[i].read(networks[i]->parameters[k]));
  }
}

TEST_CASE("state moves to another plan and back, tile by tile, and the bits go on as they would have") {
  Runtime runtime(0, nullptr, quiet());
  test::Mlp still(12), moving(12);
  for (test::Mlp* network : {&still, &moving})
    layers::adamw(network->graph, network->loss, network->parameters, {.weight_decay = 0.01});
  Plan everywhere = sharded(moving, runtime), few = everywhere;
  // All of it on the first half of the ranks: the only stage.
  const int part = runtime.size() % 2 == 0 ? 2 : 1;
  few.mesh({{"stage", part}, {"data", runtime.size() / part}})
      .stages("stage", {})
      .shard(moving.batch, "data");
  const CompileOptions options{.outputs = {moving.loss}};
  Program reference = compile(still.graph, sharded(still, runtime), runtime, {.outputs = {still.loss}});
  Program program = compile(moving.graph, everywhere, runtime, options);
  std::vector<Result> expected, found;
  for (int phase = 0; phase < 3; ++phase) {
    if (phase > 0) {
      const Plan& from = phase == 1 ? everywhere : few;
      const Plan& to = phase == 1 ? few : everywhere;
      const Layout before(moving.graph, from, runtime.size(), {}),
          after(moving.graph, to, runtime.size(), {});
      std::int64_t bytes = 0;  // of this rank's tiles that get another owner
      for (int id = 0; id < static_cast<int>(moving.graph.tensors().size()); ++id) {
        const Tensor tensor = moving.graph.tensor(id);
        if (tensor.info().kind != TensorInfo::Kind::state) continue;
        for (std::int64_t tile = 0; tile < before.tiles(tensor.axes()); ++tile)
          if (before.owner(tensor, tile) == runtime.rank() && after.owner(tensor, tile) != runtime.rank())
            bytes += product(before.region(tensor.axes(), tile).extent) * 4;
      }
      runtime.wait();
      const std::size_t sent = runtime.traffic().sent;
      Program next = program.move_to(to, options);
      CHECK(runtime.traffic().sent - sent == static_cast<std::size_t>(bytes));
      if (phase == 1 && part == 2) CHECK((bytes > 0) == (runtime.rank() >= runtime.size() / 2));
      CHECK(message<std::logic_error>([&] {
              program.run({{"learning_rate", 0.1}});
            }) == "[run] the state has moved to another plan: use the program that move_to() returned");
      program = std::move(next);
      if (phase == 1 && part == 2 && runtime.rank() >= runtime.size() / 2)
        CHECK(program.listing().state_bytes == 0);
    }
    still.bind(reference, 12, 1);
    moving.bind(program, 12, 1);
    for (int step = 0; step < 3; ++step) {
      expected.push_back(reference.run({{"learning_rate", 0.1}}));
      found.push_back(program.run({{"learning_rate", 0.1}}));
    }
  }
  for (std::size_t i = 0; runtime.rank() == 0 && i < found.size(); ++i)
    CHECK(found[i].value(moving.loss) == expected[i].value(still.loss));
  for (std::size_t i = 0; i < still.parameters.size(); ++i)
    CHECK(program.read(moving.parameters[i]) == reference.read(still.parameters[i]));
  CHECK(
      message([&] { program.move_to(Plan(everywhere).tile(moving.batch, 3), options); })
          .starts_with(
              "[move] axis batch is in tiles of 2, summed in groups of 1, and in the new plan of 3 and 1; "));
}

TEST_CASE("dynamic loss scaling leaves out steps that overflow f16, and cancels out in others") {
  Runtime runtime(0, nullptr, quiet());
  Graph g;
  Axis i = g.axis("i", 6);
  Tensor x = g.state("x", f32, {i}, Initializer::uniform(2.5, 3));
  Tensor w = g.state("w", f32, {i}, Initializer::uniform(0.5, 1));
  // The gradient by w is x: times 65536 or 32768 it is beyond the 65504 that f16 ends at, times 16384 not.
  Tensor loss = sum(cast(cast(w, DType::f16) * cast(x, DType::f16), f32));
  const auto [norm, scale] = layers::adamw(g, loss, {w}, {.beta1 = 0.5, .beta2 = 0.5, .loss_scale = 65536});
  Program program = compile(g, Plan().tile(i, 4).mesh({{"data", runtime.size()}}).shard(i, "data"), runtime,
                            {.outputs = {norm, scale}});
  const std::vector<double> before = program.read(w), factor = program.read(x);
  double squares = 0;
  for (double value : factor) squares += value * value;
  for (auto [next, finite] : {std::pair(32768, false), {16384, false}, {16384, true}}) {
    CHECK(program.read(w) == before);
    Result result = program.run({{"learning_rate", 0.1}});
    if (runtime.rank() != 0) continue;
    CHECK(result.value(scale) == next);
    if (finite)
      CHECK(result.value(norm) == doctest::Approx(std::sqrt(squares)).epsilon(1e-3));
    else
      CHECK(std::isinf(result.value(norm)));
  }
  const std::vector<double> after = program.read(w);
  // Both moments are half of what the gradient is, and divided by 1 - 0.5^3.
  for (std::size_t e = 0; e < after.size(); ++e)
    CHECK(after[e] == doctest::Approx(before[e] - 0.1 * std::sqrt(0.5 / 0.875)).epsilon(1e-6));
}

TEST_CASE("a smaller last batch and evaluation share the state") {
  Runtime runtime(0, nullptr, quiet());
  test::Mlp network(8);
  layers::adamw(network.graph, network.loss, network.parameters);
  Program train = compile(network.graph, sharded(network, runtime), runtime, {.outputs = {network.loss}});
  Program tail = train.sibling({.outputs = {network.loss}, .extents = {{network.batch, 3}}});
  Program evaluate = train.sibling({.outputs = {network.loss, network.logits}, .updates = false});
  network.bind(train, 8, 1);
  network.bind(tail, 3, 2);
  network.bind(evaluate, 8, 3);
  const Scalars rate = {{"learning_rate", 0.01}};
  train.run(rate);
  Result of_tail = tail.run(rate);
  Result once = evaluate.run(), twice = evaluate.run();
  train.run(rate);
  Result later = evaluate.run();

  // The same with a program for each size of batch, the state carried over, and the steps counted by hand.
  test::Mlp large(8), small(3);
  for (test::Mlp* other : {&large, &small}) layers::adamw(other->graph, other->loss, other->parameters);
  Program of_large = compile(large.graph, sharded(large, runtime), runtime, {.outputs = {large.loss}});
  Program of_small = compile(small.graph, sharded(small, runtime), runtime, {.outputs = {small.loss}});
  large.bind(of_large, 8, 1);
  small.bind(of_small, 3, 2);
  auto carry = [&](Program& from, Graph& of, Program& to, Graph& into) {
    for (int id = 0; id < static_cast<int>(of.tensors().size()); ++id) {
      Tensor state = of.tensor(id);
      if (state.info().kind != TensorInfo::Kind::state) continue;
      std::vector<double> values = from.read(state);
      values.resize(state.elements());  // rank 0 has them: the others get them by a sum of zeros
      if (runtime.rank() != 0) std::ranges::fill(values, 0);
      runtime.sum_over_ranks(values.data(), static_cast<int>(values.size()));
      to.write(into.find(state.name()).value(), values);
    }
  };
  auto with_step = [](double step) { return Scalars{{"learning_rate", 0.01}, {"step", step}}; };
  of_large.run(with_step(1));
  carry(of_large, large.graph, of_small, small.graph);
  Result expected = of_small.run(with_step(2));
  carry(of_small, small.graph, of_large, large.graph);
  of_large.run(with_step(3));

  for (std::size_t k = 0; k < network.parameters.size(); ++k)
    CHECK(train.read(network.parameters[k]) == of_large.read(large.parameters[k]));
  if (runtime.rank() != 0) return;
  CHECK(of_tail.value(network.loss) == expected.value(small.loss));
  CHECK(once.values(network.logits).size() == 8 * 5);
  CHECK(once.values(network.logits) == twice.values(network.logits));
  CHECK(once.value(network.loss) != later.value(network.loss));
}

TEST_CASE("what does not fit is refused, alike on every rank and before anything runs") {
  Runtime runtime(0, nullptr, quiet());
  test::Mlp network(8);
  layers::sgd(network.graph, network.loss, network.parameters);
  Tensor count = sum(network.logits);
  Program program =
      compile(network.graph, sharded(network, runtime), runtime, {.outputs = {network.loss, network.loss}});
  CHECK(message([&] {
          program.bind(network.logits, std::vector<float>(40));
        }).ends_with("add (batch 8, label 5) f32 is not an input of the graph"));
  CHECK(message([&] { program.bind(network.image, std::vector<float>(95)); }) ==
        "[bind] image (batch 8, pixel 12) f32 takes 96 values of its dtype, got 95 of f32");
  CHECK(message([&] { program.bind(network.image, std::vector<double>(96)); }) ==
        "[bind] image (batch 8, pixel 12) f32 takes 96 values of its dtype, got 96 of f64");
  CHECK(message([&] {
          program.run({{"learning_rate", 0.1}});
        }) == "[run] the input image (batch 8, pixel 12) f32 is not bound");
  network.bind(program, 8, 1);
  // Ranks without a parameter miss nothing.
  const std::string missing = message([&] { program.run({{"step", 1}}); });
  if (program.listing().state_bytes > 0)
    CHECK(missing == "[run] the scalar \"learning_rate\" is missing: run({{\"learning_rate\", value}})");
  CHECK(message([&] { program.read(network.logits); }).starts_with("[read] "));
  CHECK(message([&] { program.write(network.image, std::vector<double>(96)); }).starts_with("[write] image"));
  CHECK(message([&] { program.write(network.parameters[1], std::vector<double>(9)); }) ==
        "[write] linear1.bias (hidden1 10) f32 has 10 elements, got 9");

  // None of this has done harm.
  Result result = program.run({{"learning_rate", 0.1}});
  auto value_of = [&](const Tensor& tensor) {
    return message<std::logic_error>([&] { result.value(tensor); });
  };
  if (runtime.rank() == 0) {
    CHECK(std::isfinite(result.value(network.loss)));  // an output that was named twice
    CHECK(value_of(count).ends_with("is not an output; name it in CompileOptions::outputs"));
  } else {
    CHECK(value_of(network.loss) == "[result] outputs are on rank 0 only");
  }
  Program evaluate = program.sibling({.outputs = {network.logits}, .updates = false});
  network.bind(evaluate, 8, 1);
  result = evaluate.run();
  if (runtime.rank() == 0) CHECK(value_of(network.logits).ends_with("is not a scalar; use values()"));
}

TEST_CASE("state is read and written over all ranks, and the report has a line for each") {
  Runtime runtime(0, nullptr, quiet());
  test::Mlp network(8);
  Graph& g = network.graph;
  Tensor narrow = g.state("narrow", DType::bf16, {network.batch, network.label});
  Program program = compile(g, sharded(network, runtime), runtime, {.outputs = {network.loss}});
  network.parameters.push_back(narrow);
  for (const Tensor& w : network.parameters) {
    std::vector<double> values(w.elements());
    for (std::size_t e = 0; e < values.size(); ++e) values[e] = static_cast<double>(e % 100) / 4 - 7;
    program.write(w, values);
    CHECK(program.read(w) == (runtime.rank() == 0 ? values : std::vector<double>()));
  }
  const std::string report = program.report();
  CHECK(std::ranges::count(report, '\n') == runtime.size() + 1);
}

TEST_CASE("results outlive their program") {
  Runtime runtime(0, nullptr, quiet());
  test::Mlp network(8);
  Result result;
  {
    Program program = compile(network.graph, sharded(network, runtime), runtime, {.outputs = {network.loss}});
    network.bind(program, 8, 1);
    result = program.run();
  }
  if (runtime.rank() == 0) CHECK(std::isfinite(result.value(network.loss)));
  runtime.wait();
}

TEST_CASE("an error in a kernel is thrown at the next wait, once, and later runs are sound") {
  Runtime runtime(0, nullptr, quiet());
  if (runtime.size() > 1) return;  // ends the job there: see same_bits_test.py
  test::Mlp network(8);
  Program program = compile(network.graph, sharded(network, runtime), runtime, {.outputs = {network.loss}});
  network.bind(program, 8, 1);
  const double good = program.run().value(network.loss);
  const std::string expected = "[softmax_cross_entropy] the target of row 1 is 7, but there are 5 classes";

  std::vector<std::int32_t> labels(8, 0);
  labels[3] = 7;
  program.bind(network.target, labels);
  CHECK(message<std::out_of_range>([&] { program.run().value(network.loss); }) == expected);
  Result bad = program.run();
  CHECK(message<std::out_of_range>([&] { runtime.wait(); }) == expected);
  CHECK(message<std::runtime_error>([&] {
          bad.value(network.loss);
        }).ends_with("was not computed: an error, thrown earlier, ended the run"));
  // Host code that fills a tile may throw, too.
  program.bind(network.target, [](const TileRegion&, void*) { throw std::runtime_error("no more images"); });
  program.run();
  CHECK(message<std::runtime_error>([&] { runtime.wait(); }) == "no more images");
  network.bind(program, 8, 1);
  CHECK(program.run().value(network.loss) == good);
}

TEST_CASE("submission runs no more than two steps ahead, in bounded memory") {
  Runtime runtime(0, nullptr, quiet());
  test::Mlp network(8);
  layers::sgd(network.graph, network.loss, network.parameters);
  Plan plan;
  plan.mesh({{"data", runtime.size()}});  // one tile of images, on rank 0 or elsewhere
  Program program = compile(network.graph, plan, runtime, {.outputs = {network.loss}});
  network.bind(program, 8, 1);
  auto started = std::make_shared<std::atomic<int>>(0);
  program.bind(network.target, [started](const TileRegion& region, void* data) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::fill_n(static_cast<std::int32_t*>(data), region.extent[0], 1);
    ++*started;
  });
  constexpr int runs = 300;
  int ahead = 0;
  std::int64_t before = 0;
  for (int run = 1; run <= runs; ++run) {
    if (run == 50) before = resident_bytes();
    program.run({{"learning_rate", 0.01}});
    if (*started > 0) ahead = std::max(ahead, run - *started);
  }
  runtime.wait();
  CHECK((*started == 0 || *started == runs));  // the rank that has the images fills them
  // Two unfinished runs by number of tasks: their first tasks, as this one, may belong to one or two more.
  CHECK(ahead <= 5);
  CHECK(resident_bytes() - before < 8 << 20);
}
