// Softmax over whole rows, and its gradient.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/op.hpp"

namespace tegula {

// y[r, c] = exp(x[r, c] - m[r]) / sum_c exp(x[r, c] - m[r]),  m[r] = max_c x[r, c];  x, y are (rows, cols).
// A row that holds NaN or +inf, or nothing but -inf, has no softmax: it becomes NaN, as in PyTorch.
struct Softmax {
  static constexpr std::string_view name = "softmax";
  std::int32_t rows, cols;

  std::array<std::int64_t, 2> extents(DType) const {
    return {std::int64_t{rows} * cols, std::int64_t{rows} * cols};
  }
  double flops() const { return 5.0 * rows * cols; }
  static std::vector<Softmax> samples() { return {{1, 1}, {3, 7}, {5, 1}, {0, 4}, {17, 129}, {256, 256}}; }

  void reference(In<double> x, Out<double> y) const {
    for (std::int64_t r = 0; r < rows; ++r) {
      const double* row = x + r * cols;
      if (cols == 0) continue;
      double m = *std::max_element(row, row + cols), sum = 0;
      for (int c = 0; c < cols; ++c) sum += std::exp(row[c] - m);
      for (int c = 0; c < cols; ++c) y[r * cols + c] = std::exp(row[c] - m) / sum;
    }
  }
  template <class T>
  void cpu(In<T> x, Out<T> y) const;
  template <class T>
  void cuda(Stream stream, In<T> x, Out<T> y) const;
};

// dx[r, c] = y[r, c] (dy[r, c] - sum_c y[r, c] dy[r, c]);  y, dy, dx are (rows, cols)
struct SoftmaxGrad {
  static constexpr std::string_view name = "softmax_grad";
  std::int32_t rows, cols;

  std::array<std::int64_t, 3> extents(DType) const {
    const std::int64_t size = std::int64_t{rows} * cols;
    return {size, size, size};
  }
  double flops() const { return 4.0 * rows * cols; }
  static std::vector<SoftmaxGrad> samples() {
    return {{1, 1}, {3, 7}, {5, 1}, {0, 4}, {17, 129}, {256, 256}};
  }

  void reference(In<double> y, In<double> dy, Out<double> dx) const {
    for (std::int64_t r = 0; r < rows; ++r) {
      const double *row = y + r * cols, *row_dy = dy + r * cols;
      double dot = 0;
      for (int c = 0; c < cols; ++c) dot += row[c] * row_dy[c];
      for (int c = 0; c < cols; ++c) dx[r * cols + c] = row[c] * (row_dy[c] - dot);
    }
  }
  template <class T>
  void cpu(In<T> y, In<T> dy, Out<T> dx) const;
  template <class T>
  void cuda(Stream stream, In<T> y, In<T> dy, Out<T> dx) const;
};

}  // namespace tegula
