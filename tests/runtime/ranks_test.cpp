// What several ranks do together; also run on one. Every rank runs every test case.
#include <doctest/doctest.h>

#include <chrono>
#include <ctime>
#include <numeric>
#include <thread>

#include "framework/tile/submit.hpp"
#include "kernels/softmax.hpp"

using namespace tegula;

namespace {

constexpr std::int64_t elements = 1000;

std::vector<float> values_of(int rank, int round) {
  std::vector<float> values(elements);
  std::iota(values.begin(), values.end(), static_cast<float>(1000 * rank + round));
  return values;
}

}  // namespace

TEST_CASE("tiles travel round a ring, in order, and StarPU counts exactly their bytes") {
  Runtime runtime(0, nullptr, {.print_table = false});
  if (runtime.size() == 1) {
    Tile tile(runtime, {1}, f32);
    CHECK_THROWS_AS(submit::send(runtime, tile, 1, 0), std::invalid_argument);
    CHECK_THROWS_AS(submit::receive(runtime, tile, 0, 0), std::invalid_argument);
    return;
  }
  const int next = (runtime.rank() + 1) % runtime.size();
  const int previous = (runtime.rank() + runtime.size() - 1) % runtime.size();
  constexpr int rounds = 20, lanes = 3;
  std::vector<Tile> mine, theirs;
  for (int lane = 0; lane < lanes; ++lane) {
    mine.emplace_back(runtime, std::vector{elements}, f32);
    theirs.emplace_back(runtime, std::vector{elements}, f32);
  }
  int right = 0;
  for (int round = 0; round < rounds; ++round)
    for (int lane = 0; lane < lanes; ++lane) {
      const int key = round * lanes + lane;
      submit::fill(mine[lane], [values = values_of(runtime.rank(), key)](void* data) {
        std::ranges::copy(values, static_cast<float*>(data));
      });
      submit::send(runtime, mine[lane], next, lane, -round);
      submit::receive(runtime, theirs[lane], previous, lane);
      submit::visit(theirs[lane], [&right, expected = values_of(previous, key)](const void* data) {
        const auto* values = static_cast<const float*>(data);
        __atomic_fetch_add(&right, std::equal(expected.begin(), expected.end(), values), __ATOMIC_RELAXED);
      });
      submit::drop(theirs[lane]);
    }
  runtime.wait();
  CHECK(right == rounds * lanes);
  const Runtime::Traffic traffic = runtime.traffic();
  CHECK(traffic.sent == rounds * lanes * elements * sizeof(float));
  CHECK(traffic.received == traffic.sent);
}

TEST_CASE("a received tile is an operand like any other, and a second Runtime counts from zero") {
  Runtime runtime(0, nullptr, {.cpu_workers = 2, .scheduler = "dmdas", .print_table = false});
  CHECK(runtime.cpu_workers() == 2);
  CHECK(runtime.traffic().sent == 0);
  if (runtime.size() == 1) return;
  // Rank 0 has a; every other rank gets it and returns a a, of which rank 0 checks the sum.
  const Tile a(runtime, {32, 32}, f32);
  std::vector<Tile> products;
  if (runtime.rank() == 0) {
    submit::fill(a, [](void* data) { std::fill_n(static_cast<float*>(data), 1024, 1.0F); });
    for (int rank = 1; rank < runtime.size(); ++rank) {
      submit::send(runtime, a, rank, 1);
      products.emplace_back(runtime, std::vector<std::int64_t>{32, 32}, f32);
      submit::receive(runtime, products.back(), rank, 2);
    }
    for (const Tile& product : products) CHECK(product.read<float>() == std::vector<float>(1024, 32.0F));
  } else {
    products.emplace_back(runtime, std::vector<std::int64_t>{32, 32}, f32);
    submit::receive(runtime, a, 0, 1);
    submit::gemm(a, a, products[0]);
    submit::send(runtime, products[0], 0, 2);
  }
  runtime.wait();
  const auto one = 4096U * static_cast<unsigned>(runtime.size() - 1);
  CHECK(runtime.traffic().sent == (runtime.rank() == 0 ? one : 4096U));
  CHECK(runtime.traffic().received == (runtime.rank() == 0 ? one : 4096U));
}

TEST_CASE("ranks agree on the largest code at the same call, a few calls later") {
  Runtime runtime(0, nullptr, {.print_table = false});
  const int last = runtime.size() - 1;
  std::vector<int> answers;
  for (int call = 0; call < 30; ++call)
    answers.push_back(runtime.agree(call == 5 && runtime.rank() == last ? Runtime::failure_code : 0));
  const auto first = static_cast<double>(std::ranges::find(answers, Runtime::failure_code) - answers.begin());
  CHECK(first >= 5);
  CHECK(first < 5 + 10);
  CHECK(answers.back() == Runtime::failure_code);
  double sum = first;
  runtime.sum_over_ranks(&sum, 1);
  CHECK(sum == first * runtime.size());
}

TEST_CASE("the earliest non-finite output of any rank is known to all") {
  Runtime runtime(0, nullptr, {.check_finite = true, .print_table = false});
  Tile zero(runtime, {2}, f32), y(runtime, {2}, f32);
  zero.write(std::vector<float>{0, 1});
  CHECK_FALSE(runtime.first_non_finite());
  using Log = Pointwise<pointwise::Log>;
  const Log op{{}, {zero.extents(), {submit::broadcast_strides("log", zero, y)}}};
  const Tile* tiles[] = {&zero, &y};
  const auto sequence = static_cast<std::uint64_t>(100 - runtime.rank());
  submit::task(op_info<Log>(), f32, &op, tiles,
               {.label = runtime.rank() == runtime.size() - 1 ? "last" : "other", .sequence = sequence});
  const NonFinite found = runtime.first_non_finite().value();
  CHECK(found.task == "last");
  CHECK(found.sequence == static_cast<std::uint64_t>(101 - runtime.size()));
}

TEST_CASE("an idle rank burns no core") {
  Runtime runtime(0, nullptr, {.print_table = false});
  const auto cpu_seconds = [] { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; };
  Tile tile(runtime, {1}, f32);
  tile.write(std::vector<float>{1});
  runtime.barrier();
  const double before = cpu_seconds();
  // With several ranks, one waits for a message all the while.
  if (runtime.rank() == 1) submit::receive(runtime, tile, 0, 7);
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  const double used = cpu_seconds() - before;
  if (runtime.rank() == 0 && runtime.size() > 1) submit::send(runtime, tile, 1, 7);
  runtime.wait();
  CHECK(used < 0.2);
}
