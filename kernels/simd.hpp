// What turns plain loops into vector code: clones of a function for each x86-64 level, and reductions whose order
// does not depend on the vector length. Elementwise loops are marked `#pragma GCC ivdep`: `omp simd` says the same, but
// keeps g++ 12 from vectorising conversions to bf16.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/combine.hpp"

// Compiles a function once per instruction set and picks at load time. What it calls has to be inlined into it.
#if defined(__x86_64__) && !defined(TEGULA_NO_TARGET_CLONES)
#define TEGULA_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define TEGULA_CLONES
#endif
#define TEGULA_INLINE __attribute__((always_inline))  // for lambdas: [](float x) TEGULA_INLINE { ... }

namespace tegula {

// The elements of `lane` combined as a balanced binary tree. Recursion, because a loop over widths would not be unrolled.
template <int n, class C, class Combine>
TEGULA_FN C combine_tree(C* lane, Combine combine) {
  if constexpr (n == 1) {
    return lane[0];
  } else {
#pragma omp simd
    for (int l = 0; l < n / 2; ++l) lane[l] = combine(lane[l], lane[l + n / 2]);
    return combine_tree<n / 2>(lane, combine);
  }
}

// combine(...combine(neutral, map(0))..., map(n - 1)), associated the same way whatever the alignment of the data
// and the vector length: index i goes to partial result i % 32, those are combined as a binary tree.
// `load(i)` reads what `map` is applied to. The last block is filled up with `fill`, for which map gives the
// neutral element, so that short rows are vector code too.
template <class C, class Load, class Map, class Combine>
TEGULA_FN C fold(std::int64_t n, C neutral, C fill, Load load, Map map, Combine combine) {
  constexpr int lanes = 32;
  C lane[lanes];
  for (C& partial : lane) partial = neutral;
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
#pragma omp simd
    for (int l = 0; l < lanes; ++l) lane[l] = combine(lane[l], map(load(i + l)));
  }
  if (const int rest = static_cast<int>(n - i); rest > 0) {
    C last
        [lanes];  // in memory: else g++ applies `map` to whatever a masked load leaves in the lanes it skips
#pragma omp simd
    for (int l = 0; l < lanes; ++l) last[l] = l < rest ? load(i + l) : fill;
#pragma omp simd
    for (int l = 0; l < lanes; ++l) lane[l] = combine(lane[l], map(last[l]));
  }
  return combine_tree<lanes>(lane, combine);
}

template <class C, class T>
TEGULA_FN C sum_of(const T* x, std::int64_t n) {
  return fold(
      n, C(0), C(0), [=](std::int64_t i) TEGULA_INLINE { return C(x[i]); },
      [](C v) TEGULA_INLINE { return v; }, Plus{});
}

template <class C, class T>
TEGULA_FN C max_of(const T* x, std::int64_t n) {  // -inf where n is 0
  return fold(
      n, C(-INFINITY), C(-INFINITY), [=](std::int64_t i) TEGULA_INLINE { return C(x[i]); },
      [](C v) TEGULA_INLINE { return v; }, Maximum{});
}

template <class C, class T>
TEGULA_FN C sum_of_exp(const T* x, std::int64_t n, C shift) {
  return fold(
      n, C(0), C(-INFINITY), [=](std::int64_t i) TEGULA_INLINE { return C(x[i]); },
      [=](C v) TEGULA_INLINE { return exp_or_zero(v - shift); }, Plus{});
}

}  // namespace tegula
