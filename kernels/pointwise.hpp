// All pointwise ops, each stated once, by a functor. Loops for the CPU, CUDA kernels, codelets, derivatives,
// tests and benchmarks are instantiated from the list PointwiseOps at the end of this file: adding an op is
// adding a functor and its name there. A functor has
//
//   name, arity, flops            flops: roughly, of one element, an elementary function counting as 10
//   value(x...)                   the function, for float, double and Dual numbers in any mixture
//
// and where it helps
//
//   data members                  parameters of the op, doubles
//   sample(operand, u)            maps u in [0, 1) into the domain, for the tests; default 6u - 3
//   example()                     an op with other parameters than the default ones, for the tests
//   linear(i)                     the derivative by argument i where it is a constant, else nothing: then
//                                 the graph needs no multiplication by a slope
//   slope_from_output(y)          the derivative as a function of the result, so that x need not be kept
//   piecewise_linear = true       second derivatives vanish
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "kernels/dual.hpp"

namespace tegula::pointwise {

using math::select;

struct Add {
  static constexpr std::string_view name = "add";
  static constexpr int arity = 2;
  static constexpr double flops = 1;
  TEGULA_FN auto value(auto x, auto y) const { return x + y; }
  constexpr std::optional<double> linear(int) const { return 1; }
};

struct Subtract {
  static constexpr std::string_view name = "subtract";
  static constexpr int arity = 2;
  static constexpr double flops = 1;
  TEGULA_FN auto value(auto x, auto y) const { return x - y; }
  constexpr std::optional<double> linear(int i) const { return i == 0 ? 1 : -1; }
};

struct Multiply {
  static constexpr std::string_view name = "multiply";
  static constexpr int arity = 2;
  static constexpr double flops = 1;
  TEGULA_FN auto value(auto x, auto y) const { return x * y; }
};

struct Divide {
  static constexpr std::string_view name = "divide";
  static constexpr int arity = 2;
  static constexpr double flops = 4;
  TEGULA_FN auto value(auto x, auto y) const { return x / y; }
  double sample(int operand, double u) const { return operand == 0 ? 6 * u - 3 : u < 0.5 ? u - 1 : u; }
};

struct Negate {
  static constexpr std::string_view name = "negate";
  static constexpr int arity = 1;
  static constexpr double flops = 1;
  TEGULA_FN auto value(auto x) const { return -x; }
  constexpr std::optional<double> linear(int) const { return -1; }
};

struct Scale {
  static constexpr std::string_view name = "scale";
  static constexpr int arity = 1;
  static constexpr double flops = 1;
  double factor = 1;
  static Scale example() { return {-0.75}; }
  template <class T>
  TEGULA_FN T value(T x) const {
    return Real<T>(factor) * x;
  }
  constexpr std::optional<double> linear(int) const { return factor; }
};

struct Identity {  // a copy, which may also broadcast or make a strided view dense
  static constexpr std::string_view name = "copy";
  static constexpr int arity = 1;
  static constexpr double flops = 0;
  TEGULA_FN auto value(auto x) const { return x; }
  constexpr std::optional<double> linear(int) const { return 1; }
};

struct Exp {
  static constexpr std::string_view name = "exp";
  static constexpr int arity = 1;
  static constexpr double flops = 10;
  TEGULA_FN auto value(auto x) const { return math::exp(x); }
  TEGULA_FN auto slope_from_output(auto y) const { return y; }
};

struct Log {
  static constexpr std::string_view name = "log";
  static constexpr int arity = 1;
  static constexpr double flops = 10;
  TEGULA_FN auto value(auto x) const { return math::log(x); }
  double sample(int, double u) const { return 0.1 + 3 * u; }
};

struct Sqrt {
  static constexpr std::string_view name = "sqrt";
  static constexpr int arity = 1;
  static constexpr double flops = 4;
  TEGULA_FN auto value(auto x) const { return math::sqrt(x); }
  TEGULA_FN auto slope_from_output(auto y) const { return 1 / (2 * y); }
  double sample(int, double u) const { return 0.1 + 3 * u; }
};

struct Rsqrt {  // 1 / sqrt(x)
  static constexpr std::string_view name = "rsqrt";
  static constexpr int arity = 1;
  static constexpr double flops = 8;
  TEGULA_FN auto value(auto x) const { return 1 / math::sqrt(x); }
  TEGULA_FN auto slope_from_output(auto y) const { return y * y * y / -2; }
  double sample(int, double u) const { return 0.1 + 3 * u; }
};

struct Power {  // x^y
  static constexpr std::string_view name = "power";
  static constexpr int arity = 2;
  static constexpr double flops = 20;
  TEGULA_FN auto value(auto x, auto y) const { return math::pow(x, y); }
  double sample(int operand, double u) const { return operand == 0 ? 0.2 + 2 * u : 4 * u - 2; }
};

struct PowerScalar {  // x^exponent
  static constexpr std::string_view name = "power_scalar";
  static constexpr int arity = 1;
  static constexpr double flops = 20;
  double exponent = 2;
  static PowerScalar example() { return {2.5}; }
  double sample(int, double u) const { return 0.1 + 2 * u; }
  template <class T>
  TEGULA_FN T value(T x) const {
    return math::pow(x, Real<T>(exponent));
  }
};

struct Tanh {
  static constexpr std::string_view name = "tanh";
  static constexpr int arity = 1;
  static constexpr double flops = 10;
  TEGULA_FN auto value(auto x) const { return math::tanh(x); }
  TEGULA_FN auto slope_from_output(auto y) const { return 1 - y * y; }
};

struct Sigmoid {
  static constexpr std::string_view name = "sigmoid";
  static constexpr int arity = 1;
  static constexpr double flops = 14;
  TEGULA_FN auto value(auto x) const { return math::sigmoid(x); }
  TEGULA_FN auto slope_from_output(auto y) const { return y * (1 - y); }
};

struct Relu {  // with slope 0 at 0
  static constexpr std::string_view name = "relu";
  static constexpr int arity = 1;
  static constexpr double flops = 1;
  static constexpr bool piecewise_linear = true;
  TEGULA_FN auto value(auto x) const { return select(x <= 0, 0, x); }
  template <class T>
  TEGULA_FN T slope_from_output(T y) const {
    return select(y <= 0, T(0), T(1));
  }
};

struct Gelu {  // x Phi(x), Phi the normal distribution
  static constexpr std::string_view name = "gelu";
  static constexpr int arity = 1;
  static constexpr double flops = 14;
  template <class T>
  TEGULA_FN T value(T x) const {
    constexpr Real<T> sqrt_half = 0.70710678118654752;
    return x / 2 * (1 + math::erf(sqrt_half * x));
  }
};

// x (1 + tanh z) / 2 = x sigmoid(2z),  z = sqrt(2 / pi) (x + 0.044715 x^3); Hendrycks and Gimpel 2016
struct GeluTanh {
  static constexpr std::string_view name = "gelu_tanh";
  static constexpr int arity = 1;
  static constexpr double flops = 20;
  template <class T>
  TEGULA_FN T value(T x) const {
    constexpr Real<T> two_sqrt_two_over_pi = 1.5957691216057308, cubic = 0.044715;
    return x * math::sigmoid(two_sqrt_two_over_pi * (x + cubic * x * x * x));
  }
};

struct Silu {  // x sigmoid(x)
  static constexpr std::string_view name = "silu";
  static constexpr int arity = 1;
  static constexpr double flops = 15;
  TEGULA_FN auto value(auto x) const { return x * math::sigmoid(x); }
};

struct Clamp {  // min(max(x, low), high)
  static constexpr std::string_view name = "clamp";
  static constexpr int arity = 1;
  static constexpr double flops = 2;
  static constexpr bool piecewise_linear = true;
  double low = -1, high = 1;
  template <class T>
  TEGULA_FN T value(T x) const {
    return select(x < Real<T>(low), Real<T>(low), select(x > Real<T>(high), Real<T>(high), x));
  }
};

struct Maximum {  // NaN where either is; where both are equal the slope goes to y
  static constexpr std::string_view name = "maximum";
  static constexpr int arity = 2;
  static constexpr double flops = 1;
  static constexpr bool piecewise_linear = true;
  TEGULA_FN auto value(auto x, auto y) const { return select(x > y || !(x == x), x, y); }
};

struct Minimum {
  static constexpr std::string_view name = "minimum";
  static constexpr int arity = 2;
  static constexpr double flops = 1;
  static constexpr bool piecewise_linear = true;
  TEGULA_FN auto value(auto x, auto y) const { return select(x < y || !(x == x), x, y); }
};

struct Less {  // 1 where x < y, else 0
  static constexpr std::string_view name = "less";
  static constexpr int arity = 2;
  static constexpr double flops = 1;
  template <class T>
  TEGULA_FN T value(T x, T y) const {
    return select(x < y, T(1), T(0));
  }
  constexpr std::optional<double> linear(int) const { return 0; }
};

struct Equal {  // 1 where x == y, else 0
  static constexpr std::string_view name = "equal";
  static constexpr int arity = 2;
  static constexpr double flops = 1;
  template <class T>
  TEGULA_FN T value(T x, T y) const {
    return select(x == y, T(1), T(0));
  }
  constexpr std::optional<double> linear(int) const { return 0; }
  double sample(int, double u) const { return static_cast<int>(3 * u); }
};

struct Where {  // condition != 0 ? x : y
  static constexpr std::string_view name = "where";
  static constexpr int arity = 3;
  static constexpr double flops = 1;
  static constexpr bool piecewise_linear = true;
  TEGULA_FN auto value(auto condition, auto x, auto y) const { return select(condition == 0, y, x); }
  constexpr std::optional<double> linear(int i) const { return i == 0 ? std::optional(0.0) : std::nullopt; }
  double sample(int operand, double u) const { return operand == 0 ? static_cast<int>(2 * u) : 6 * u - 3; }
};

struct LogAddExp {  // log(exp(x) + exp(y)) without overflow, also of infinities
  static constexpr std::string_view name = "log_add_exp";
  static constexpr int arity = 2;
  static constexpr double flops = 24;
  TEGULA_FN auto value(auto x, auto y) const {
    auto difference = select(x - y == x - y, x - y, 0);  // inf - inf counts as 0
    auto below = select(difference > 0, -difference, difference);
    return Maximum().value(x, y) + math::log1p(math::exp(below));
  }
};

struct SwiGlu {  // silu(gate) x: Shazeer, GLU Variants Improve Transformer, 2020
  static constexpr std::string_view name = "swiglu";
  static constexpr int arity = 2;
  static constexpr double flops = 16;
  TEGULA_FN auto value(auto gate, auto x) const { return gate * math::sigmoid(gate) * x; }
};
struct ExpMinus {  // exp(x - y), a softmax where y is the logsumexp of a row
  static constexpr std::string_view name = "exp_minus";
  static constexpr int arity = 2;
  static constexpr double flops = 11;
  TEGULA_FN auto value(auto x, auto y) const { return math::exp(x - y); }
};

// What follows is derived from the functors above.

template <class F>
std::string name_of() {
  if constexpr (std::is_invocable_v<decltype(F::name)>)
    return F::name();
  else
    return std::string(F::name);
}

// The derivative by argument i where it is the same everywhere, whatever the arguments.
template <class F>
constexpr std::optional<double> constant_slope(const F& f, int i) {
  if constexpr (requires { f.linear(i); })
    return f.linear(i);
  else
    return std::nullopt;
}

template <class F>
inline constexpr bool has_output_slope = requires(const F& f, double y) {
  f.slope_from_output(y);
};
template <class F>
inline constexpr bool is_piecewise_linear = requires {
  F::piecewise_linear;
};

template <class F>
double sample_of(const F& f, int operand, double u) {
  if constexpr (requires { f.sample(operand, u); })
    return f.sample(operand, u);
  else
    return 6 * u - 3;
}

namespace detail {
template <class A, class B>
using Deeper = std::conditional_t<(depth<A> < depth<B>), B, A>;
}

// dy dF/dx_i, of operands x..., dy: what a gradient by x_i needs. Its own slopes are the second derivatives;
// by dy it is linear, with the slope Slope<F, i>(x..., ddy).
template <class F, int i>
struct Slope {
  static_assert(i < F::arity);
  static constexpr int arity = F::arity + 1;
  static constexpr double flops = 2 * F::flops + 1;
  [[no_unique_address]] F f;

  static std::string name() { return name_of<F>() + "_slope" + (F::arity > 1 ? std::to_string(i) : ""); }
  double sample(int operand, double u) const {
    return operand < F::arity ? sample_of(f, operand, u) : 2 * u - 1;
  }
  constexpr std::optional<double> linear(int j) const {
    return is_piecewise_linear<F> && j < F::arity ? std::optional(0.0) : std::nullopt;
  }

  TEGULA_FN auto value(auto x, auto dy) const requires(F::arity == 1) {
    return dy * f.value(lift<0, decltype(x)>(x)).slope;
  }
  TEGULA_FN auto value(auto x, auto y, auto dy) const requires(F::arity == 2) {
    using T = detail::Deeper<decltype(x), decltype(y)>;
    return dy * f.value(lift<0, T>(x), lift<1, T>(y)).slope;
  }
  TEGULA_FN auto value(auto x, auto y, auto z, auto dy) const requires(F::arity == 3) {
    using T = detail::Deeper<detail::Deeper<decltype(x), decltype(y)>, decltype(z)>;
    return dy * f.value(lift<0, T>(x), lift<1, T>(y), lift<2, T>(z)).slope;
  }

 private:
  template <int j, class T>
  TEGULA_FN static auto lift(auto x) {
    if constexpr (i == j)
      return Dual<T>(T(x), T(1));
    else
      return x;
  }
};

// dy F'(x), of operands y = F(x), dy.
template <class F>
struct OutputSlope {
  static constexpr int arity = 2;
  static constexpr double flops = F::flops + 1;
  [[no_unique_address]] F f;

  static std::string name() { return name_of<F>() + "_output_slope"; }
  double sample(int operand, double u) const {
    return operand == 0 ? f.value(sample_of(f, 0, u)) : 2 * u - 1;
  }
  constexpr std::optional<double> linear(int j) const {
    return is_piecewise_linear<F> && j == 0 ? std::optional(0.0) : std::nullopt;
  }
  TEGULA_FN auto value(auto y, auto dy) const { return dy * f.slope_from_output(y); }
};

template <class F>
inline constexpr int order = 0;  // of the derivative: those above 2 have no kernels
template <class F, int i>
inline constexpr int order<Slope<F, i>> = order<F> + 1;
template <class F>
inline constexpr int order<OutputSlope<F>> = order<F> + 1;

// Whether the derivative by x_i is an op of its own, Slope<F, i>: not if it is constant, nor if F is itself a
// slope and x_i the dy in which it is linear (the derivative is then F with another dy).
template <class F, int i>
inline constexpr bool has_slope = !constant_slope(F(), i) && (order<F> == 0 || i + 1 < F::arity);

// Calls visit.template operator()<G>() for each derivative G of F.
template <class F, class Visit>
void for_each_slope(Visit&& visit) {
  [&]<int... i>(std::integer_sequence<int, i...>) {
    auto by = [&]<int j>() {
      if constexpr (has_slope<F, j>) visit.template operator()<Slope<F, j>>();
    };
    (by.template operator()<i>(), ...);
  }
  (std::make_integer_sequence<int, F::arity>{});
  if constexpr (has_output_slope<F>) visit.template operator()<OutputSlope<F>>();
}

}  // namespace tegula::pointwise

namespace tegula {

using PointwiseOps =
    Types<pointwise::Add, pointwise::Subtract, pointwise::Multiply, pointwise::Divide, pointwise::Negate,
          pointwise::Scale, pointwise::Identity, pointwise::Exp, pointwise::Log, pointwise::Sqrt,
          pointwise::Rsqrt, pointwise::Power, pointwise::PowerScalar, pointwise::Tanh, pointwise::Sigmoid,
          pointwise::Relu, pointwise::Gelu, pointwise::GeluTanh, pointwise::Silu, pointwise::Clamp,
          pointwise::Maximum, pointwise::Minimum, pointwise::Less, pointwise::Equal, pointwise::Where,
          pointwise::LogAddExp, pointwise::ExpMinus, pointwise::SwiGlu>;

namespace pointwise {

// Calls visit.template operator()<F>() for each functor of the list (n = 0), its derivatives (1), or theirs
// (2).
template <int n, class Visit>
void for_each_of_order(Visit visit) {
  if constexpr (n > 0) {
    for_each_of_order<n - 1>([&]<class F>() { for_each_slope<F>(visit); });
  } else {
    [&]<class... F>(Types<F...>) { (visit.template operator()<F>(), ...); }(PointwiseOps());
  }
}

}  // namespace pointwise

}  // namespace tegula
