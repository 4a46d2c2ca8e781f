// Trains under plans of which the literature says what they send and holds that, rank by rank where it says so, against the
// bytes that StarPU counts; the listings' predictions as well.
//
//     counted_bytes
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <stdexcept>

#include "framework/program/program.hpp"
#include "tests/program/closed_forms.hpp"
#include "tests/program/networks.hpp"

using namespace tegula;

namespace {

constexpr int steps = 3;

// Of each rank in `steps` steps.
std::vector<double> counted(Program& program, Runtime& runtime) {
  runtime.wait();
  runtime.barrier();
  const std::uint64_t before = runtime.traffic().sent;
  for (int step = 0; step < steps; ++step) program.run({{"learning_rate", 0.1}});
  runtime.wait();
  runtime.barrier();
  const std::uint64_t after = runtime.traffic().sent;
  std::vector<double> all(runtime.size(), 0);
  all[runtime.rank()] = static_cast<double>(after - before);
  runtime.sum_over_ranks(all.data(), runtime.size());
  return all;
}

void check(const test::ClosedForm& form, Graph& graph, Runtime& runtime) {
  Program program = compile(graph, form.plan, runtime, form.options);
  for (const TensorInfo& info : graph.tensors()) {
    if (info.kind != TensorInfo::Kind::input) continue;
    const Tensor input = graph.find(info.name).value();
    if (input.dtype() == i32)
      program.bind(input, test::made_up_labels(input.elements(), 5));
    else
      program.bind(input, test::made_up(input.elements(), 1));
  }
  const std::vector<double> bytes = counted(program, runtime);
  const double sum = std::reduce(bytes.begin(), bytes.end());
  auto compare = [&](const std::string& who, double count, std::int64_t expected) {
    if (count != static_cast<double>(steps * expected))
      throw std::logic_error(form.name + " on " + std::to_string(runtime.size()) + " ranks: " + who +
                             " sent " + std::to_string(count) + " bytes in " + std::to_string(steps) +
                             " steps, not " + std::to_string(steps * expected));
  };
  compare("all", sum, form.bytes);
  for (std::size_t rank = 0; rank < form.rank_bytes.size(); ++rank)
    compare("rank " + std::to_string(rank), bytes[rank], form.rank_bytes[rank]);
  compare("this rank", bytes[runtime.rank()], program.listing().sent_bytes);
  if (runtime.rank() == 0)
    std::printf("%s: %lld bytes a step\n", form.name.c_str(), static_cast<long long>(form.bytes));
}

}  // namespace

int main(int argc, char** argv) {
  return tegula::run([&] {
    Runtime runtime(argc, argv, {.cpu_workers = 1, .print_table = false});
    const int ranks = runtime.size();
    if (ranks != 2 && ranks != 4 && ranks != 8)
      throw std::invalid_argument("counted_bytes runs on 2, 4 or 8 ranks");
    test::Perceptron images(16);
    check(test::data_parallel(images, ranks, 2), images.g, runtime);

    test::TwoProducts products;
    check(products.in_1d(ranks), products.g, runtime);
    if (ranks == 4) check(products.in_2d(2), products.g, runtime);
    if (ranks == 8) {
      check(products.in_2d(2, 2), products.g, runtime);
      check(products.in_3d(2), products.g, runtime);
    }

    for (const int kernel : {3, 5}) {
      test::TwoConvolutions convolutions(kernel);
      check(convolutions.in_space(ranks), convolutions.g, runtime);
    }

    std::vector<std::int64_t> hidden{7, 4, 3, 6, 2, 5, 8};
    hidden.resize(ranks - 1);
    test::Perceptron layers(13, hidden);
    for (const std::string& name : schedules::names())
      if (name != "chimera")  // its second pipeline has the weights sent
        check(test::pipeline(layers, ranks, name), layers.g, runtime);
    return 0;
  });
}
