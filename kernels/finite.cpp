#include "kernels/finite.hpp"

#include <algorithm>

#include "kernels/simd.hpp"

namespace tegula {

// x - x is NaN for those. Blocks, so that a bad element near the start ends the search early although the
// inner loop has no branch.
template <class T>
TEGULA_CLONES static bool finite(const T* x, std::int64_t n) {
  constexpr std::int64_t block = 4096;
  for (std::int64_t begin = 0; begin < n; begin += block) {
    const std::int64_t end = std::min(n, begin + block);
    int bad = 0;
#pragma omp simd reduction(| : bad)
    for (std::int64_t i = begin; i < end; ++i) {
      const Compute<T> v = x[i];
      bad |= v - v != 0;
    }
    if (bad != 0) return false;
  }
  return true;
}

bool all_finite(const void* data, std::int64_t n, DType dtype) {
  return visit_dtype(dtype, [&]<class T>() {
    if constexpr (std::is_integral_v<T>)
      return true;
    else
      return finite(static_cast<const T*>(data), n);
  });
}

}  // namespace tegula
