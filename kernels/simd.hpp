// What turns plain loops into vector code: clones of a function for each x86-64 level, vector forms of the
// elementary functions, and reductions whose order does not depend on the vector length.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/dtype.hpp"

// Compiles a function once per instruction set and picks at load time. What it calls has to be inlined into it.
#if defined(__x86_64__) && !defined(TEGULA_NO_TARGET_CLONES)
#define TEGULA_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define TEGULA_CLONES
#endif
#define TEGULA_INLINE __attribute__((always_inline))  // for lambdas: [](float x) TEGULA_INLINE { ... }

// glibc's libmvec has vector forms of these, which its headers declare under -ffast-math only.
#if defined(__x86_64__) && defined(__GLIBC__)
extern "C" {
__attribute__((simd("notinbranch"))) float expf(float) noexcept;
__attribute__((simd("notinbranch"))) double exp(double) noexcept;
__attribute__((simd("notinbranch"))) float logf(float) noexcept;
__attribute__((simd("notinbranch"))) double log(double) noexcept;
}
#endif

namespace tegula {

// combine(...combine(neutral, map(x[0]))..., map(x[n - 1])), associated the same way whatever the alignment
// of x and the vector length: element i goes to partial result i % 32, those are combined as a binary tree.
// The last block is filled up with `fill`, for which map gives the neutral element, so that it is vector code too.
template <class C, class T, class Map, class Combine>
TEGULA_FN C fold_row(const T* x, std::int64_t n, C neutral, C fill, Map map, Combine combine) {
  constexpr int lanes = 32;
  C lane[lanes];
  for (C& partial : lane) partial = neutral;
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
#pragma omp simd
    for (int l = 0; l < lanes; ++l) lane[l] = combine(lane[l], map(C(x[i + l])));
  }
  if (int rest = static_cast<int>(n - i); rest > 0) {
#pragma omp simd
    for (int l = 0; l < lanes; ++l) lane[l] = combine(lane[l], map(l < rest ? C(x[i + l]) : fill));
  }
  for (int width = lanes / 2; width > 0; width /= 2)
    for (int l = 0; l < width; ++l) lane[l] = combine(lane[l], lane[l + width]);
  return lane[0];
}

struct Plus {
  template <class C> TEGULA_FN C operator()(C a, C b) const { return a + b; }
};
struct Maximum {  // NaN where either is NaN, unlike std::max
  template <class C> TEGULA_FN C operator()(C a, C b) const { return b > a || b != b ? b : a; }
};

}  // namespace tegula
