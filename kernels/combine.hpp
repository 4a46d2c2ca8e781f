// How reductions combine two values, on CPU and GPU.
#pragma once

#include <cmath>

#include "kernels/dual.hpp"

namespace tegula {

// The shift that keeps a sum of exp(x - shift) from overflowing, given max x: exp(-inf - -inf) would be NaN.
template <class C>
TEGULA_FN C finite_or_zero(C max) {
  return std::abs(max) == C(INFINITY) ? C(0) : max;
}

// exp(x), and zero where that is less than the least normal number: libmvec leaves such x, and -inf, to scalar code, which
// makes rows that are masked by -inf ten times slower. By bits, because g++ would undo a selection before the call.
template <class C>
TEGULA_FN C exp_or_zero(C x) {
  using Bits = std::conditional_t<sizeof(C) == 4, std::int32_t, std::int64_t>;
  const Bits keep = Bits(x < C(sizeof(C) == 4 ? -87 : -708)) - 1;
  const C y = math::exp(detail::bit_cast<C>(detail::bit_cast<Bits>(x) & keep));
  return detail::bit_cast<C>(detail::bit_cast<Bits>(y) & keep);
}

struct Plus {
  template <class C>
  TEGULA_FN C operator()(C a, C b) const {
    return a + b;
  }
};
struct Maximum {  // NaN where either is NaN, unlike std::max
  template <class C>
  TEGULA_FN C operator()(C a, C b) const {
    return b > a || b != b ? b : a;
  }
};

}  // namespace tegula
