// Dual numbers: a value with its derivative along one direction. A pointwise op's functor evaluated on them
// gives its slope, and on Dual<Dual<T>> its second slope, so that no op states a derivative by hand. Operands
// that are held constant stay plain numbers: nothing is multiplied by a zero derivative, which would cost
// time and make NaN of infinities.
//
// namespace math has the elementary functions on float, double and Dual. On the CPU they are glibc's, whose
// vector forms (libmvec) take their place inside vectorised loops; on the GPU they are CUDA's.
#pragma once

#include <cmath>
#include <type_traits>

#include "kernels/dtype.hpp"

// glibc's headers declare the vector forms under -ffast-math only.
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__CUDACC__)
extern "C" {
__attribute__((simd("notinbranch"))) float expf(float) noexcept;
__attribute__((simd("notinbranch"))) float logf(float) noexcept;
__attribute__((simd("notinbranch"))) float log1pf(float) noexcept;
__attribute__((simd("notinbranch"))) float tanhf(float) noexcept;
__attribute__((simd("notinbranch"))) float erff(float) noexcept;
__attribute__((simd("notinbranch"))) float cosf(float) noexcept;
__attribute__((simd("notinbranch"))) float powf(float, float) noexcept;
__attribute__((simd("notinbranch"))) double exp(double) noexcept;
__attribute__((simd("notinbranch"))) double log(double) noexcept;
__attribute__((simd("notinbranch"))) double log1p(double) noexcept;
__attribute__((simd("notinbranch"))) double tanh(double) noexcept;
__attribute__((simd("notinbranch"))) double erf(double) noexcept;
__attribute__((simd("notinbranch"))) double cos(double) noexcept;
__attribute__((simd("notinbranch"))) double pow(double, double) noexcept;
}
#endif

namespace tegula {

template <class T>
struct Dual;

template <class T>
inline constexpr int depth = 0;  // how many times T is a Dual
template <class T>
inline constexpr int depth<Dual<T>> = depth<T> + 1;

namespace detail {
template <class T>
struct RealOf {
  using type = T;
};
template <class T>
struct RealOf<Dual<T>> : RealOf<T> {};
}  // namespace detail
template <class T>
using Real = typename detail::RealOf<T>::type;  // float or double, under all Duals

// A number that is constant along the direction of a Dual<T>: of T or what T is made of.
template <class S, class T>
concept ConstantFor = (depth<S> <= depth<T>);

template <class T>
struct Dual {
  T value, slope;

  TEGULA_FN Dual(T v, T s) : value(v), slope(s) {}
  template <ConstantFor<T> S>
  TEGULA_FN Dual(S constant)
      : value(constant), slope(0) {}  // NOLINT(google-explicit-constructor): lifts a number
};

template <class T>
TEGULA_FN Dual<T> operator-(Dual<T> a) {
  return {-a.value, -a.slope};
}

template <class T>
TEGULA_FN Dual<T> operator+(Dual<T> a, Dual<T> b) {
  return {a.value + b.value, a.slope + b.slope};
}
template <class T, ConstantFor<T> S>
TEGULA_FN Dual<T> operator+(Dual<T> a, S b) {
  return {a.value + b, a.slope};
}
template <class T, ConstantFor<T> S>
TEGULA_FN Dual<T> operator+(S a, Dual<T> b) {
  return {a + b.value, b.slope};
}

template <class T>
TEGULA_FN Dual<T> operator-(Dual<T> a, Dual<T> b) {
  return {a.value - b.value, a.slope - b.slope};
}
template <class T, ConstantFor<T> S>
TEGULA_FN Dual<T> operator-(Dual<T> a, S b) {
  return {a.value - b, a.slope};
}
template <class T, ConstantFor<T> S>
TEGULA_FN Dual<T> operator-(S a, Dual<T> b) {
  return {a - b.value, -b.slope};
}

template <class T>
TEGULA_FN Dual<T> operator*(Dual<T> a, Dual<T> b) {
  return {a.value * b.value, a.slope * b.value + a.value * b.slope};
}
template <class T, ConstantFor<T> S>
TEGULA_FN Dual<T> operator*(Dual<T> a, S b) {
  return {a.value * b, a.slope * b};
}
template <class T, ConstantFor<T> S>
TEGULA_FN Dual<T> operator*(S a, Dual<T> b) {
  return {a * b.value, a * b.slope};
}

template <class T>
TEGULA_FN Dual<T> operator/(Dual<T> a, Dual<T> b) {
  T quotient = a.value / b.value;
  return {quotient, (a.slope - quotient * b.slope) / b.value};
}
template <class T, ConstantFor<T> S>
TEGULA_FN Dual<T> operator/(Dual<T> a, S b) {
  return {a.value / b, a.slope / b};
}
template <class T, ConstantFor<T> S>
TEGULA_FN Dual<T> operator/(S a, Dual<T> b) {
  T quotient = a / b.value;
  return {quotient, -quotient * b.slope / b.value};
}

// Comparisons look at the numbers, not at their slopes.
TEGULA_FN auto primal(auto x) {
  if constexpr (depth<decltype(x)> == 0)
    return x;
  else
    return primal(x.value);
}
template <class A, class B>
concept OneIsDual = (depth<A> + depth<B> > 0);
template <class A, class B>
requires OneIsDual<A, B> TEGULA_FN bool operator<(A a, B b) { return primal(a) < primal(b); }
template <class A, class B>
requires OneIsDual<A, B> TEGULA_FN bool operator>(A a, B b) { return primal(a) > primal(b); }
template <class A, class B>
requires OneIsDual<A, B> TEGULA_FN bool operator<=(A a, B b) { return primal(a) <= primal(b); }
template <class A, class B>
requires OneIsDual<A, B> TEGULA_FN bool operator==(A a, B b) { return primal(a) == primal(b); }

namespace math {

// condition ? a : b, with both evaluated, which vectorises.
template <class A, class B>
TEGULA_FN auto select(bool condition, A a, B b) {
  if constexpr (depth<A> < depth<B>)
    return select(condition, B(a), b);
  else if constexpr (depth<A> > depth<B>)
    return select(condition, a, A(b));
  else if constexpr (depth<A> == 0)
    return condition ? a : b;
  else
    return A(select(condition, a.value, b.value), select(condition, a.slope, b.slope));
}

TEGULA_FN float exp(float x) { return ::expf(x); }
TEGULA_FN double exp(double x) { return ::exp(x); }
template <class T>
TEGULA_FN Dual<T> exp(Dual<T> x) {
  T y = exp(x.value);
  return {y, y * x.slope};
}

TEGULA_FN float log(float x) { return ::logf(x); }
TEGULA_FN double log(double x) { return ::log(x); }
template <class T>
TEGULA_FN Dual<T> log(Dual<T> x) {
  return {log(x.value), x.slope / x.value};
}

TEGULA_FN float log1p(float x) { return ::log1pf(x); }
TEGULA_FN double log1p(double x) { return ::log1p(x); }
template <class T>
TEGULA_FN Dual<T> log1p(Dual<T> x) {
  return {log1p(x.value), x.slope / (1 + x.value)};
}

TEGULA_FN float sqrt(float x) { return ::sqrtf(x); }
TEGULA_FN double sqrt(double x) { return ::sqrt(x); }
template <class T>
TEGULA_FN Dual<T> sqrt(Dual<T> x) {
  T y = sqrt(x.value);
  return {y, x.slope / (2 * y)};
}

TEGULA_FN float tanh(float x) { return ::tanhf(x); }
TEGULA_FN double tanh(double x) { return ::tanh(x); }
template <class T>
TEGULA_FN Dual<T> tanh(Dual<T> x) {
  T y = tanh(x.value);
  return {y, (1 - y * y) * x.slope};
}

// 1 / (1 + exp(-x)). Elementary, because the quotient rule would give inf / inf where exp overflows.
template <class T>
TEGULA_FN T sigmoid(T x) {
  return 1 / (1 + exp(-x));
}
template <class T>
TEGULA_FN Dual<T> sigmoid(Dual<T> x) {
  T y = sigmoid(x.value);
  return {y, y * (1 - y) * x.slope};
}

TEGULA_FN float erf(float x) { return ::erff(x); }
TEGULA_FN double erf(double x) { return ::erf(x); }
template <class T>
TEGULA_FN Dual<T> erf(Dual<T> x) {
  constexpr Real<T> two_over_sqrt_pi = 1.1283791670955126;
  return {erf(x.value), two_over_sqrt_pi * exp(-(x.value * x.value)) * x.slope};
}

TEGULA_FN float pow(float x, float y) { return ::powf(x, y); }
TEGULA_FN double pow(double x, double y) { return ::pow(x, y); }
template <class T>
TEGULA_FN Dual<T> pow(Dual<T> x, Dual<T> y);
template <class T, ConstantFor<T> S>
TEGULA_FN Dual<T> pow(Dual<T> x, S y) {
  return {pow(x.value, y), y * pow(x.value, y - 1) * x.slope};
}
template <class T, ConstantFor<T> S>
TEGULA_FN Dual<T> pow(S x, Dual<T> y) {
  T power = pow(x, y.value);
  return {power, power * log(select(x > 0, x, 1)) * y.slope};  // 0^y is taken for constant
}
template <class T>
TEGULA_FN Dual<T> pow(Dual<T> x, Dual<T> y) {
  Dual<T> by_x = pow(x, y.value), by_y = pow(x.value, y);
  return {by_x.value, by_x.slope + by_y.slope};
}

TEGULA_FN float cos(float x) { return ::cosf(x); }
TEGULA_FN double cos(double x) { return ::cos(x); }

}  // namespace math

}  // namespace tegula
