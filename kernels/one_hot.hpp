// Integer classes as rows of zeros and a one.
#pragma once

#include <cmath>

#include "kernels/op.hpp"

namespace tegula {

// y[r, c] = 1 where target[r] == class_begin + c, else 0, on one tile of classes, which starts at class_begin;
// target is (rows), y is (rows, cols).
struct OneHot {
  static constexpr std::string_view name = "one_hot";
  std::int32_t rows, cols, class_begin;

  std::array<std::int64_t, 2> extents(DType) const { return {rows, std::int64_t{rows} * cols}; }
  double flops() const { return 0; }
  double sample(int, double u) const { return std::floor(u * (class_begin + cols + 1)); }
  static std::vector<OneHot> samples() {
    return {{1, 1, 0}, {3, 7, 4}, {5, 1, 0}, {0, 4, 0}, {17, 129, 9}, {256, 256, 0}};
  }

  void reference(In<std::int32_t> target, Out<double> y) const {
    for (std::int64_t i = 0; i < std::int64_t{rows} * cols; ++i)
      y[i] = target[i / cols] == class_begin + i % cols;
  }
  template <class T>
  void cpu(In<std::int32_t> target, Out<T> y) const;
  template <class T>
  void cuda(Stream stream, In<std::int32_t> target, Out<T> y) const;
};

}  // namespace tegula
