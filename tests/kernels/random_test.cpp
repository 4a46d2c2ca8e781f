#include "kernels/random.hpp"

#include <doctest/doctest.h>

#include <set>

#include "kernels/finite.hpp"
#include "task.hpp"

using namespace tegula;
using namespace tegula::test;

namespace {

constexpr std::int64_t rows = 23, cols = 150;
const std::vector<std::int64_t> whole{rows, cols};

// The op's values on the tile [r0, r1) x [c0, c1) of a matrix.
template <class T, class Op>
std::vector<T> values(Op op, std::int64_t r0, std::int64_t r1, std::int64_t c0, std::int64_t c1) {
  const std::vector<std::int64_t> extents{r1 - r0, c1 - c0}, begin{r0, c0};
  op.tile = TileInTensor(extents, begin, whole);
  std::vector<T> x(op.tile.elements(), T(1.0f)), y(op.tile.elements());
  void* tiles[] = {x.data(), y.data()};
  op_info<Op>().cpu(&op, std::is_same_v<Op, Dropout> ? tiles : tiles + 1, dtype_of<T>);
  return y;
}

template <class T, class Op>
void check_tiling(const Op& op) {
  const std::vector<T> all = values<T>(op, 0, rows, 0, cols);
  for (std::int64_t height : {1, 5, 23})
    for (std::int64_t width : {1, 7, 64, 150})
      for (std::int64_t r = 0; r < rows; r += height)
        for (std::int64_t c = 0; c < cols; c += width) {
          const std::int64_t r1 = std::min(r + height, rows), c1 = std::min(c + width, cols);
          const std::vector<T> tile = values<T>(op, r, r1, c, c1);
          bool same = true;
          for (std::int64_t i = r; i < r1; ++i)
            same =
                same && std::memcmp(&tile[(i - r) * (c1 - c)], &all[i * cols + c], (c1 - c) * sizeof(T)) == 0;
          REQUIRE_MESSAGE(same, Op::name, ": tile (", r, ", ", c, ") of ", height, " x ", width);
        }
}

constexpr RandomStream stream{42, 7, 3};

}  // namespace

TEST_SUITE("kernels") {
  TEST_CASE("Philox gives the known answers of Random123") {
    auto check = [](PhiloxWords counter, std::uint64_t key, PhiloxWords expected) {
      const PhiloxWords w = philox(counter, key);
      CHECK(w.w0 == expected.w0);
      CHECK(w.w1 == expected.w1);
      CHECK(w.w2 == expected.w2);
      CHECK(w.w3 == expected.w3);
    };
    check({0, 0, 0, 0}, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
    check({~0u, ~0u, ~0u, ~0u}, ~0ull, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
    check({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822,
          {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
  }

  TEST_CASE_TEMPLATE("random numbers do not depend on the tiling", T, float, double, bf16, f16) {
    check_tiling<T>(Uniform{-1, 2, stream, {}});
    check_tiling<T>(Normal{0.5, 3, stream, {}});
    check_tiling<T>(Dropout{0.25, stream, {}});
  }

  TEST_CASE("random numbers have their distribution") {
    auto moments = [](const std::vector<double>& x) {
      double sum = 0, squares = 0;
      for (double v : x) sum += v, squares += v * v;
      const double n = static_cast<double>(x.size()), mean = sum / n;
      return std::pair(mean, std::sqrt(squares / n - mean * mean));
    };
    auto [uniform_mean, uniform_deviation] =
        moments(values<double>(Uniform{0, 1, stream, {}}, 0, rows, 0, cols));
    CHECK(uniform_mean == doctest::Approx(0.5).epsilon(0.03));
    CHECK(uniform_deviation == doctest::Approx(std::sqrt(1.0 / 12)).epsilon(0.03));
    auto [normal_mean, normal_deviation] =
        moments(values<double>(Normal{2, 3, stream, {}}, 0, rows, 0, cols));
    CHECK(normal_mean == doctest::Approx(2).epsilon(0.1));
    CHECK(normal_deviation == doctest::Approx(3).epsilon(0.03));

    const auto kept = values<float>(Dropout{0.25, stream, {}}, 0, rows, 0, cols);
    const auto zeros = std::count(kept.begin(), kept.end(), 0.0f);
    CHECK(zeros == doctest::Approx(0.25 * rows * cols).epsilon(0.1));
    CHECK(std::count(kept.begin(), kept.end(), 4.0f / 3) == rows * cols - zeros);
  }

  TEST_CASE("seed, tensor and step all change random numbers, the dtype only rounds them") {
    auto first = [](RandomStream random) { return values<float>(Uniform{0, 1, random, {}}, 0, 1, 0, 1)[0]; };
    const std::set<float> numbers{first({42, 7, 3}), first({43, 7, 3}), first({42, 8, 3}), first({42, 7, 4})};
    CHECK(numbers.size() == 4);
    const auto x = values<double>(Normal{0, 1, stream, {}}, 0, 1, 0, cols);
    const auto y = values<float>(Normal{0, 1, stream, {}}, 0, 1, 0, cols);
    for (std::int64_t i = 0; i < cols; ++i) CHECK(y[i] == doctest::Approx(x[i]).epsilon(1e-5));
  }

  TEST_CASE("permutation keys differ between samples and epochs") {
    std::set<std::uint64_t> keys;
    for (std::uint32_t epoch = 0; epoch < 2; ++epoch)
      for (std::uint64_t sample = 0; sample < 1000; ++sample)
        keys.insert(philox_permutation_key(1, epoch, sample));
    CHECK(keys.size() == 2000);
  }

  TEST_CASE_TEMPLATE("what is not finite is found anywhere", T, float, double, bf16, f16) {
    for (std::int64_t n : {0, 1, 63, 5000}) {
      std::vector<T> x(n, T(1.0f));
      CHECK(all_finite(x.data(), n, dtype_of<T>));
      for (std::int64_t i : {std::int64_t{0}, n / 2, n - 1})
        for (float bad : {NAN, INFINITY, -INFINITY}) {
          if (n == 0) continue;
          const T good = x[i];
          x[i] = T(bad);
          CHECK(!all_finite(x.data(), n, dtype_of<T>));
          x[i] = good;
        }
    }
    const std::int32_t integer = 0x7f800000;
    CHECK(all_finite(&integer, 1, i32));
  }
}
