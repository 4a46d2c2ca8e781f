// What the generated tests of ops cannot know of pointwise functors: that their derivatives are derivatives,
// and what becomes of NaN and infinities.
#include <doctest/doctest.h>

#include <array>
#include <optional>

#include "kernels/pointwise_op.hpp"
#include "task.hpp"

using namespace tegula;
using namespace tegula::test;
namespace pw = tegula::pointwise;

namespace {

template <class F>
F example_of() {
  if constexpr (requires { F::example(); })
    return F::example();
  else if constexpr (requires(F f) { f.f; })
    return {example_of<decltype(F::f)>()};
  else
    return {};
}

template <class F>
double value(const F& f, const std::array<double, F::arity>& x) {
  return std::apply([&](auto... xs) { return static_cast<double>(f.value(xs...)); }, x);
}

template <class F>
std::array<double, F::arity> arguments(const F& f, int number) {
  std::array<double, F::arity> x;
  for (int i = 0; i < F::arity; ++i) x[i] = pw::sample_of(f, i, Task::pseudo_random(i, number));
  return x;
}

// Nothing at a kink or step, where the differences to both sides disagree.
template <class F>
std::optional<double> finite_difference(const F& f, std::array<double, F::arity> x, int i) {
  constexpr double h = 1e-5;
  const double here = value(f, x);
  x[i] += h;
  const double after = value(f, x);
  x[i] -= 2 * h;
  const double before = value(f, x), slope = (after - before) / (2 * h);
  if (std::abs((after - here) - (here - before)) > 0.01 * h * (1 + std::abs(slope))) return std::nullopt;
  return slope;
}

// Calls check(i) for i = 0, ..., F::arity - 1 as a compile-time constant.
template <class F, class Check>
void for_each_argument(Check&& check) {
  [&]<int... i>(std::integer_sequence<int, i...>) { (check(std::integral_constant<int, i>()), ...); }
  (std::make_integer_sequence<int, F::arity>());
}

template <class F>
void check_slopes() {
  INFO(pw::name_of<F>());
  const F f = example_of<F>();
  for (int number = 0; number < 200; ++number) {
    const auto x = arguments(f, number);
    for_each_argument<F>([&](auto i) {
      const std::optional<double> expected = finite_difference(f, x, i);
      if (!expected) return;
      const auto near = doctest::Approx(*expected).epsilon(1e-6).scale(1);
      CAPTURE(number);
      CAPTURE(i.value);
      if (auto constant = pw::constant_slope(f, i)) CHECK(*constant == near);
      if constexpr (pw::has_slope<F, i>) {
        const pw::Slope<F, i> slope{f};
        std::apply([&](auto... xs) { CHECK(slope.value(xs..., 1.0) == near); }, x);
        std::apply([&](auto... xs) { CHECK(slope.value(xs..., -2.0) == -2 * slope.value(xs..., 1.0)); }, x);
      }
    });
    if constexpr (pw::has_output_slope<F>) {
      const pw::OutputSlope<F> slope{f};
      CHECK(slope.value(value(f, x), 1.0) ==
            doctest::Approx(pw::Slope<F, 0>{f}.value(x[0], 1.0)).epsilon(1e-12).scale(1));
    }
  }
}

}  // namespace

TEST_SUITE("kernels") {
  TEST_CASE("slopes are what finite differences say") {
    pw::for_each_of_order<0>([&]<class F>() { check_slopes<F>(); });
  }

  TEST_CASE("slopes of slopes are what finite differences say") {
    pw::for_each_of_order<1>([&]<class F>() { check_slopes<F>(); });
  }

  TEST_CASE("functors are the functions of their names") {
    CHECK(pw::Gelu().value(1.0) == doctest::Approx(0.8413447460685429));
    CHECK(pw::Gelu().value(-2.0) == doctest::Approx(-0.0455002638963584));
    CHECK(pw::GeluTanh().value(1.0) == doctest::Approx(0.8411919906082768));
    CHECK(pw::GeluTanh().value(-2.0) == doctest::Approx(-0.0454023059));
    CHECK(pw::Silu().value(1.0) == doctest::Approx(0.7310585786300049));
    CHECK(pw::LogAddExp().value(1000.0, 1000.0) == doctest::Approx(1000.6931471805599));
    CHECK(pw::Rsqrt().value(4.0) == 0.5);
    CHECK(pw::Power().value(2.0, 10.0) == doctest::Approx(1024));
    CHECK(pw::Clamp{-1, 2}.value(3.0) == 2);
    CHECK(pw::Where().value(0.0, 3.0, 4.0) == 4);
    CHECK(pw::Less().value(1.0, 2.0) == 1);
    CHECK(pw::Relu().value(-3.0) == 0);
    CHECK(pw::Slope<pw::Relu, 0>().value(0.0, 5.0) == 0);
    CHECK(pw::Slope<pw::Multiply, 0>().value(HUGE_VAL, 3.0, 1.0) == 3);
  }

  TEST_CASE("float, double and Dual numbers mix") {
    using Second = Dual<Dual<double>>;
    const Second x(Dual<double>(3, 1), Dual<double>(1, 0));
    const Second y = 2 * x * x * x - x / 4 + 1;  // y'' = 12 x
    CHECK(y.value.value == 2 * 27 - 0.75 + 1);
    CHECK(y.value.slope == 6 * 9 - 0.25);
    CHECK(y.slope.slope == 36);
    CHECK(depth<decltype(x * Dual<double>(1, 0))> == 2);
  }

  // Vector code may not differ from scalar code in how it treats what is not an ordinary number.
  TEST_CASE_TEMPLATE("NaN, infinities, zeros and large numbers", T, float, double) {
    constexpr double huge = 1e30, nan = std::numeric_limits<double>::quiet_NaN();
    constexpr std::array<double, 12> special{nan,   -INFINITY, INFINITY, -huge, huge, -200.0,
                                             200.0, -1.0,      -0.0,     0.0,   1.0,  2.0};
    auto check = [&]<class F>() {
      INFO(pw::name_of<F>());
      std::int64_t n = 1;
      for (int k = 0; k < F::arity; ++k) n *= special.size();
      std::array<std::vector<std::int64_t>, F::arity> strides;
      strides.fill({1});
      const Pointwise<F> op{example_of<F>(), {std::array{n}, strides}};
      const auto* bytes = reinterpret_cast<const std::byte*>(&op);
      Task task(op_info<Pointwise<F>>(), {bytes, bytes + sizeof op}, dtype_of<T>, dtype_of<T>);
      for (std::int64_t i = 0; i < n; ++i)
        for (std::int64_t k = 0, rest = i; k < F::arity; ++k, rest /= special.size())
          task.operands[k].set(i, special[rest % special.size()]);
      task.run_cpu();
      for (std::int64_t i = 0; i < n; ++i) {
        std::array<double, F::arity> x;
        for (int k = 0; k < F::arity; ++k) x[k] = task.operands[k].get(i);
        const double y = task.operands[F::arity].get(i), exact = static_cast<T>(value(op.f, x));
        CAPTURE(x[0]);
        CAPTURE(x[F::arity - 1]);
        CAPTURE(y);
        CAPTURE(exact);
        // A factor too small for f32 is 0 there, and 0 times infinity is NaN.
        constexpr bool underflows = std::is_same_v<F, pw::SwiGlu> && std::is_same_v<T, float>;
        if (std::isnan(exact) || (underflows && std::isinf(exact) && std::isnan(y)))
          CHECK(std::isnan(y));
        else if (std::isinf(exact))
          CHECK(y == exact);
        else
          CHECK(y == doctest::Approx(exact).epsilon(1e-5).scale(1));
        constexpr bool spreads = F::arity == 1 || std::is_same_v<F, pw::Add> ||
                                 std::is_same_v<F, pw::Multiply> || std::is_same_v<F, pw::Maximum> ||
                                 std::is_same_v<F, pw::Minimum> || std::is_same_v<F, pw::LogAddExp> ||
                                 std::is_same_v<F, pw::ExpMinus>;
        if (spreads && std::any_of(x.begin(), x.end(), [](double v) { return std::isnan(v); }))
          CHECK(std::isnan(y));
      }
    };
    pw::for_each_of_order<0>(check);
    CHECK(pw::Exp().value(T(-INFINITY)) == 0);
    CHECK(pw::LogAddExp().value(T(-INFINITY), T(-INFINITY)) == -INFINITY);
    CHECK(pw::ExpMinus().value(T(-INFINITY), T(3)) == 0);
  }
}
