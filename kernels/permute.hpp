// Permutation of the dimensions of a tile: transposes, NCHW to NHWC, heads of attention.
#pragma once

#include "kernels/op.hpp"

namespace tegula {

// y[i_p(0), ..., i_p(rank - 1)] = x[i_0, ..., i_(rank - 1)],  p = permutation; x is (extent[0], ..., extent[rank - 1])
struct Permute {
  static constexpr std::string_view name = "permute";
  std::int32_t rank;
  std::array<std::int32_t, 6> extent, permutation;

  // The dimensions of y, outermost first, as loops over x and y. Neighbours in both are joined, extents of 1 dropped.
  struct Loops {
    int count = 0;
    std::int64_t extent[6], stride_x[6], stride_y[6];

    TEGULA_FN std::int64_t size() const {
      std::int64_t product = 1;
      for (int d = 0; d < count; ++d) product *= extent[d];
      return product;
    }
    TEGULA_FN std::int64_t offset(const std::int64_t* stride,
                                  std::int64_t index) const {  // of the index-th iteration
      std::int64_t sum = 0;
      for (int d = count - 1; d >= 0; index /= extent[d--]) sum += index % extent[d] * stride[d];
      return sum;
    }
    TEGULA_FN std::int64_t offset_x(std::int64_t index) const { return offset(stride_x, index); }
    TEGULA_FN std::int64_t offset_y(std::int64_t index) const { return offset(stride_y, index); }
  };
  Loops loops() const {
    std::array<std::int64_t, 6> stride{};
    std::int64_t size = 1;
    for (int d = rank - 1; d >= 0; size *= extent[d--]) stride[d] = size;
    Loops all;
    for (int d = 0; d < rank; ++d) {
      const std::int64_t n = extent[permutation[d]], step = stride[permutation[d]];
      if (n == 1) continue;
      if (all.count > 0 && all.stride_x[all.count - 1] == n * step) {
        all.extent[all.count - 1] *= n;
        all.stride_x[all.count - 1] = step;
      } else {
        all.extent[all.count] = n;
        all.stride_x[all.count++] = step;
      }
    }
    std::int64_t inner = 1;
    for (int d = all.count - 1; d >= 0; inner *= all.extent[d--]) all.stride_y[d] = inner;
    return all;
  }

  // The same as transposes y[j stride_y + i] = x[i stride_x + j], i < n, j < m, one in each iteration of `outer`; where
  // the innermost loop runs along both x and y, as copies of n elements: stride_x and m are 1.
  struct Transpose {
    Loops outer;
    std::int64_t n = 1, m = 1, stride_x = 1, stride_y = 1;
  };
  static Transpose transpose_of(const Loops& all) {
    Transpose t{all};
    if (all.count > 0) {
      t.n = all.extent[--t.outer.count];
      t.stride_x = all.stride_x[t.outer.count];
    }
    for (int d = 0; t.stride_x != 1 && d < t.outer.count; ++d)
      if (all.stride_x[d] == 1) {
        t.m = std::exchange(t.outer.extent[d], 1);
        t.stride_y = all.stride_y[d];
      }
    return t;
  }

  std::array<std::int64_t, 2> extents(DType) const {
    std::int64_t size = 1;
    for (int d = 0; d < rank; ++d) size *= extent[d];
    return {size, size};
  }
  double flops() const { return 0; }
  static std::vector<Permute> samples() {
    return {{0, {}, {}},
            {1, {5}, {0}},
            {2, {3, 0}, {1, 0}},
            {2, {33, 70}, {1, 0}},
            {3, {4, 1, 6}, {2, 1, 0}},
            {3, {9, 17, 20}, {1, 0, 2}},
            {4, {2, 5, 7, 3}, {0, 2, 3, 1}},
            {4, {3, 4, 5, 16}, {0, 3, 1, 2}},
            {6, {2, 3, 4, 2, 3, 5}, {5, 3, 1, 4, 2, 0}},
            {2, {500, 524}, {1, 0}}};
  }

  void reference(In<double> x, Out<double> y) const {
    std::array<std::int64_t, 6> stride{};
    std::int64_t size = 1;
    for (int d = rank - 1; d >= 0; size *= extent[d--]) stride[d] = size;
    for (std::int64_t i = 0; i < size; ++i) {
      std::int64_t rest = i, from = 0;
      for (int d = rank - 1; d >= 0; rest /= extent[permutation[d--]])
        from += rest % extent[permutation[d]] * stride[permutation[d]];
      y[i] = x[from];
    }
  }
  template <class T>
  void cpu(In<T> x, Out<T> y) const;
  template <class T>
  void cuda(Stream stream, In<T> x, Out<T> y) const;
};

}  // namespace tegula
