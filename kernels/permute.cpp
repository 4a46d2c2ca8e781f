#include "kernels/permute.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/simd.hpp"

namespace tegula {

namespace {

template <class T>
using Bits = std::conditional_t<sizeof(T) == 8, std::int64_t,
                                std::conditional_t<sizeof(T) == 4, std::int32_t, std::int16_t>>;
template <class T>
constexpr int block = sizeof(T) == 8 ? 8 : 16;  // of which all rows fit in the vector registers
template <class T>
using Row [[gnu::vector_size(block<T> * sizeof(T))]] = Bits<T>;

// Transposes a block in registers, in rounds that interleave the rows of its upper and lower half.
template <class T>
TEGULA_FN void transpose_block(const T* x, std::int64_t ld_x, T* y, std::int64_t ld_y) {
  constexpr int n = block<T>;
  Row<T> rows[n], next[n], low, high;  // the last two: which elements of two rows, in which order
#pragma GCC unroll 16
  for (int i = 0; i < n; ++i) {
    low[i] = i / 2 + i % 2 * n;
    high[i] = low[i] + n / 2;
  }
#pragma GCC unroll 16
  for (int i = 0; i < n; ++i) std::memcpy(&rows[i], x + i * ld_x, sizeof rows[i]);
#pragma GCC unroll 4
  for (int width = 1; width < n; width *= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < n / 2; ++i) {
      next[2 * i] = __builtin_shuffle(rows[i], rows[i + n / 2], low);
      next[2 * i + 1] = __builtin_shuffle(rows[i], rows[i + n / 2], high);
    }
#pragma GCC unroll 16
    for (int i = 0; i < n; ++i) rows[i] = next[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < n; ++i) std::memcpy(static_cast<void*>(y + i * ld_y), &rows[i], sizeof rows[i]);
}

// y[j ld_y + i] = x[i ld_x + j], i < n, j < m
template <class T>
TEGULA_CLONES void transpose(std::int64_t n, std::int64_t m, const T* x, std::int64_t ld_x, T* y,
                             std::int64_t ld_y) {
  constexpr std::int64_t side = block<T>;
  for (std::int64_t i0 = 0; i0 < n; i0 += side)
    for (std::int64_t j0 = 0; j0 < m; j0 += side) {
      const T* from = x + i0 * ld_x + j0;
      T* to = y + j0 * ld_y + i0;
      if (i0 + side <= n && j0 + side <= m) {
        transpose_block(from, ld_x, to, ld_y);
      } else {
        for (std::int64_t j = 0; j < std::min(side, m - j0); ++j)
          for (std::int64_t i = 0; i < std::min(side, n - i0); ++i) to[j * ld_y + i] = from[i * ld_x + j];
      }
    }
}

}  // namespace

template <class T>
void Permute::cpu(In<T> x, Out<T> y) const {
  const Loops all = loops();
  if (all.size() == 0) return;
  const Transpose t = transpose_of(all);
  for (std::int64_t i = 0; i < t.outer.size(); ++i) {
    const T* from = x + t.outer.offset_x(i);
    T* to = y + t.outer.offset_y(i);
    if (t.stride_x == 1)
      std::copy_n(from, t.n, to);
    else
      transpose(t.n, t.m, from, t.stride_x, to, t.stride_y);
  }
}

const Register<Permute> registered_permute;

}  // namespace tegula
