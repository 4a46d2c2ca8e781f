// How reductions combine two values, on CPU and GPU.
#pragma once

#include <cmath>

#include "kernels/dtype.hpp"

namespace tegula {

// The shift that keeps a sum of exp(x - shift) from overflowing, given max x: exp(-inf - -inf) would be NaN.
template <class C>
TEGULA_FN C finite_or_zero(C max) {
  return std::abs(max) == C(INFINITY) ? C(0) : max;
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
