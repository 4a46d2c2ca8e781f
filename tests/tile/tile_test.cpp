// Tiles and the tasks on them, on one rank.
#include "framework/tile/tile.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>
#include <thread>

#include "framework/tile/submit.hpp"
#include "kernels/softmax.hpp"

using namespace tegula;

namespace {

Runtime quiet_runtime(RuntimeOptions options = {}) {
  options.print_table = false;
  return Runtime(0, nullptr, options);
}

Tile filled(Runtime& runtime, std::vector<std::int64_t> extents, std::vector<float> values) {
  Tile tile(runtime, std::move(extents), f32);
  tile.write(values);
  return tile;
}

}  // namespace

TEST_CASE("a tile gives back what was written into it") {
  Runtime runtime = quiet_runtime();
  Tile tile(runtime, {2, 3}, f32);
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  tile.write(values);
  CHECK(tile.read<float>() == values);
  CHECK(tile.bytes() == 24);
  CHECK(to_string(tile) == "f32 tile (2, 3)");
  Tile scalar(runtime, {}, f64);
  scalar.write(std::vector<double>{2.5});
  CHECK(scalar.read<double>() == std::vector<double>{2.5});
}

TEST_CASE("mistakes with a tile are exceptions that name it") {
  Runtime runtime = quiet_runtime();
  Tile tile(runtime, {4}, f32);
  CHECK_THROWS_WITH_AS(tile.read<float>(), "[tile] f32 tile (4) is read, but nothing has written it",
                       std::logic_error);
  CHECK_THROWS_WITH_AS(tile.read<double>(), "[tile] f32 tile (4) cannot be copied as f64",
                       std::invalid_argument);
  CHECK_THROWS_WITH_AS(tile.write(std::vector<float>(3)), "[tile] f32 tile (4) has 4 elements, 3 were given",
                       std::invalid_argument);
  CHECK_THROWS_AS(Tile(runtime, {2, -1}, f32), std::invalid_argument);
  tile.write(std::vector<float>(4));
  submit::drop(tile);
  CHECK_THROWS_AS(tile.read<float>(), std::logic_error);
}

TEST_CASE("tasks run in the order that the tiles they share demand") {
  Runtime runtime = quiet_runtime({.cpu_workers = 2});
  Tile tile(runtime, {1}, i32);
  int seen = 0;
  for (int i = 0; i < 200; ++i) {
    submit::fill(tile, [i](void* data) { *static_cast<std::int32_t*>(data) = i; });
    submit::visit(tile,
                  [i, &seen](const void* data) { seen += *static_cast<const std::int32_t*>(data) == i; });
  }
  runtime.wait();
  CHECK(seen == 200);
}

TEST_CASE("independent tasks run on all workers at once") {
  Runtime runtime = quiet_runtime({.cpu_workers = 2});
  std::atomic<int> running = 0;
  Tile a(runtime, {1}, f32), b(runtime, {1}, f32);
  const auto meet = [&](void*) {  // returns only if the other one runs too
    ++running;
    while (running < 2) std::this_thread::yield();
  };
  submit::fill(a, meet);
  submit::fill(b, meet);
  runtime.wait();
  CHECK(running == 2);
}

TEST_CASE("gemm multiplies matrices, transposed as asked, with bias and activation") {
  Runtime runtime = quiet_runtime();
  const Tile a = filled(runtime, {2, 3}, {1, 2, 3, 4, 5, 6});
  const Tile b = filled(runtime, {3, 2}, {1, 0, 0, 1, 1, 1});
  const Tile bt = filled(runtime, {2, 3}, {1, 0, 1, 0, 1, 1});
  const Tile bias = filled(runtime, {2}, {-5, 0});
  const Tile c(runtime, {2, 2}, f32);
  submit::gemm(a, b, c);
  CHECK(c.read<float>() == std::vector<float>{4, 5, 10, 11});
  submit::gemm(a, bt, c, {.transpose_b = true, .accumulate = true, .alpha = -1});
  CHECK(c.read<float>() == std::vector<float>{0, 0, 0, 0});
  submit::gemm(a, b, c, {.bias = &bias, .activation = Activation::relu});
  CHECK(c.read<float>() == std::vector<float>{0, 5, 5, 11});
}

TEST_CASE("gemm refuses what does not fit, naming all three") {
  Runtime runtime = quiet_runtime();
  const Tile a = filled(runtime, {4, 3}, std::vector<float>(12)),
             b = filled(runtime, {2, 5}, std::vector<float>(10));
  const Tile c(runtime, {4, 5}, f32), half(runtime, {4, 3}, DType::bf16), row(runtime, {5}, f32);
  CHECK_THROWS_WITH_AS(submit::gemm(a, b, c),
                       "[gemm] inner extents differ: a is a f32 tile (4, 3), b is a f32 tile (2, 5)",
                       std::invalid_argument);
  CHECK_THROWS_WITH_AS(
      submit::gemm(a, a, c, {.transpose_b = true}),
      "[gemm] c is a f32 tile (4, 5), the product of a f32 tile (4, 3) and a f32 tile (4, 3), "
      "transposed is (4, 4)",
      std::invalid_argument);
  CHECK_THROWS_WITH_AS(submit::gemm(a, row, c), "[gemm] b is a f32 tile (5): a matrix is needed",
                       std::invalid_argument);
  const Tile square(runtime, {4, 4}, f32);
  CHECK_THROWS_WITH_AS(submit::gemm(half, a, square, {.transpose_b = true}),
                       "[gemm] operand 0 is a bf16 tile (4, 3), the op needs f32", std::invalid_argument);
}

TEST_CASE("an op is run by its struct, with scratch memory from StarPU") {
  Runtime runtime = quiet_runtime({.cpu_workers = 2});
  // bf16 gemm needs scratch: several tasks at once must not share it.
  std::vector<Tile> a, c;
  for (int i = 0; i < 8; ++i) {
    a.emplace_back(runtime, std::vector<std::int64_t>{16, 16}, DType::bf16);
    a.back().write(std::vector<bf16>(256, bf16(static_cast<float>(i))));
    c.emplace_back(runtime, std::vector<std::int64_t>{16, 16}, DType::bf16);
  }
  for (int i = 0; i < 8; ++i) submit::gemm(a[i], a[i], c[i]);
  for (int i = 0; i < 8; ++i)
    for (bf16 value : c[i].read<bf16>()) CHECK(static_cast<float>(value) == static_cast<float>(16 * i * i));

  const Tile x = filled(runtime, {2, 2}, {0, 0, 5, 5}), y(runtime, {2, 2}, f32);
  submit::op(Softmax{.rows = 2, .cols = 2}, x, y);
  CHECK(y.read<float>() == std::vector<float>(4, 0.5F));
}

TEST_CASE("operands of a task are checked when it is submitted") {
  Runtime runtime = quiet_runtime();
  const Tile x = filled(runtime, {2, 2}, {0, 0, 5, 5}), y(runtime, {2, 2}, f32), small(runtime, {3}, f32);
  CHECK_THROWS_WITH_AS(submit::op(Softmax{2, 2}, x, small),
                       "[softmax] operand 1 is a f32 tile (3) of 3 elements, the op needs 4",
                       std::invalid_argument);
  CHECK_THROWS_WITH_AS(submit::op(Softmax{2, 2}, x), "[softmax] operand 1 is missing", std::invalid_argument);
  CHECK_THROWS_WITH_AS(submit::op(Softmax{2, 2}, x, y, y), "[softmax] takes 2 tiles, 3 are given",
                       std::invalid_argument);
  CHECK_THROWS_WITH_AS(submit::op(Softmax{2, 2}, x, x),
                       "[softmax] operand 1, a f32 tile (2, 2), is given a second time and written",
                       std::invalid_argument);
  CHECK_THROWS_WITH_AS(submit::op(Softmax{2, 2}, y, x),
                       "[softmax] task 'softmax' reads a tile (buffer 0) that nothing has written",
                       std::logic_error);
  const Tile integers(runtime, {4}, i32);
  CHECK_THROWS_WITH_AS(submit::op(Softmax{2, 2}, integers, x), "[softmax] has no kernel for i32",
                       std::invalid_argument);
}

TEST_CASE("apply broadcasts and may read one tile twice") {
  Runtime runtime = quiet_runtime();
  const Tile x = filled(runtime, {2, 3}, {1, 2, 3, 4, 5, 6}), row = filled(runtime, {3}, {10, 20, 30});
  const Tile column = filled(runtime, {2, 1}, {1, 2}), y(runtime, {2, 3}, f32);
  submit::apply(pointwise::Add{}, x, row, y);
  CHECK(y.read<float>() == std::vector<float>{11, 22, 33, 14, 25, 36});
  submit::apply(pointwise::Multiply{}, x, column, y);
  CHECK(y.read<float>() == std::vector<float>{1, 2, 3, 8, 10, 12});
  submit::apply(pointwise::Multiply{}, x, x, y);
  CHECK(y.read<float>() == std::vector<float>{1, 4, 9, 16, 25, 36});
  CHECK_THROWS_WITH_AS(submit::apply(pointwise::Negate{}, row, Tile(runtime, {2, 2}, f32)),
                       "[negate] a f32 tile (3) does not repeat to a f32 tile (2, 2)", std::invalid_argument);
}

TEST_CASE("tiles of no elements are legal everywhere") {
  Runtime runtime = quiet_runtime();
  const Tile none(runtime, {0, 3}, f32), b = filled(runtime, {3, 2}, std::vector<float>(6, 1));
  const Tile c(runtime, {0, 2}, f32);
  submit::gemm(none, b, c);
  CHECK(c.read<float>().empty());
  // A product over nothing is zero.
  const Tile left(runtime, {2, 0}, f32), right(runtime, {0, 2}, f32), zero(runtime, {2, 2}, f32);
  submit::gemm(left, right, zero);
  CHECK(zero.read<float>() == std::vector<float>(4, 0));
  submit::fill(none, [](void*) { FAIL("there is nothing to fill"); });
  submit::drop(none);
  runtime.wait();
}

TEST_CASE("a prepared task is submitted many times, with other scalars each time") {
  Runtime runtime = quiet_runtime();
  const Tile x = filled(runtime, {3}, {1, 2, 3}), y(runtime, {3}, f32);
  using Scale = Pointwise<pointwise::Scale>;
  const Scale op{{.factor = 1}, {x.extents(), {submit::broadcast_strides("scale", x, y)}}};
  const Tile* tiles[] = {&x, &y};
  const submit::PreparedTask task(op_info<Scale>(), f32, &op, tiles);
  for (double factor : {2.0, -1.0, 0.5}) {
    task.submit(0, {{{.offset = 0, .value = factor}}});
    CHECK(y.read<float>()[2] == 3 * static_cast<float>(factor));
  }
  CHECK(task.flops() == 3);
}

TEST_CASE("the first exception of a kernel is rethrown by the next wait, and later tasks are skipped") {
  Runtime runtime = quiet_runtime();
  const Tile tile(runtime, {1}, f32);
  bool ran = false;
  submit::fill(tile, [](void*) { throw std::runtime_error("[fill] no more data"); });
  submit::visit(tile, [&](const void*) { ran = true; });
  CHECK_THROWS_WITH_AS(runtime.wait(), "[fill] no more data", std::runtime_error);
  CHECK_FALSE(ran);
  submit::fill(tile, [](void* data) { *static_cast<float*>(data) = 3; });
  CHECK(tile.read<float>()[0] == 3);
}

TEST_CASE("the earliest output that is not finite is found") {
  Runtime runtime = quiet_runtime({.check_finite = true});
  const Tile zero = filled(runtime, {2}, {0, 1}), y(runtime, {2}, f32), z(runtime, {2}, f32);
  CHECK_FALSE(runtime.first_non_finite());
  submit::apply(pointwise::Divide{}, zero, zero, y);
  const NonFinite first = runtime.first_non_finite().value();
  CHECK(first.task == "divide");
  CHECK_FALSE(runtime.first_non_finite());

  using Log = Pointwise<pointwise::Log>;
  const Log op{{}, {zero.extents(), {submit::broadcast_strides("log", zero, z)}}};
  const Tile* to_y[] = {&zero, &y};
  const Tile* to_z[] = {&zero, &z};
  submit::task(op_info<Log>(), f32, &op, to_z, {.label = "later", .sequence = 7});
  submit::task(op_info<Log>(), f32, &op, to_y, {.label = "earlier", .sequence = 3});
  const NonFinite found = runtime.first_non_finite().value();
  CHECK(found.task == "earlier");
  CHECK(found.sequence == 3);
}

TEST_CASE("a tile may go while tasks still use it") {
  Runtime runtime = quiet_runtime();
  const Tile sum = filled(runtime, {64, 64}, std::vector<float>(4096, 0));
  for (int i = 0; i < 50; ++i) {
    const Tile a = filled(runtime, {64, 64}, std::vector<float>(4096, 1));
    submit::gemm(a, a, sum, {.accumulate = true});
  }
  CHECK(sum.read<float>()[0] == 50 * 64);
}
