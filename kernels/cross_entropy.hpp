// The cross-entropy of softmax(logits) with integer classes, fused: neither the softmax nor the one-hot target is stored.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/op.hpp"

namespace tegula {

// log_sum_exp[r] = log sum_c exp(logits[r, c]),  loss[r] = log_sum_exp[r] - logits[r, target[r]]
// logits is (rows, cols), the others (rows). A target outside [0, cols) is an error: std::out_of_range on the CPU, a
// loss of NaN on the GPU, which cannot throw.
struct SoftmaxCrossEntropy {
  static constexpr std::string_view name = "softmax_cross_entropy";
  std::int32_t rows, cols;

  std::array<std::int64_t, 4> extents(DType) const { return {std::int64_t{rows} * cols, rows, rows, rows}; }
  double flops() const { return 4.0 * rows * cols; }
  double sample(int operand, double u) const { return operand == 1 ? std::floor(u * cols) : 8 * u - 4; }
  static std::vector<SoftmaxCrossEntropy> samples() {
    return {{1, 1}, {3, 7}, {5, 1}, {0, 4}, {17, 129}, {128, 10}, {256, 256}};
  }

  void reference(In<double> logits, In<std::int32_t> target, Out<double> loss,
                 Out<double> log_sum_exp) const {
    for (std::int64_t r = 0; r < rows; ++r) {
      const double* row = logits + r * cols;
      double m = *std::max_element(row, row + cols), sum = 0;
      for (int c = 0; c < cols; ++c) sum += std::exp(row[c] - m);
      log_sum_exp[r] = m + std::log(sum);
      loss[r] = log_sum_exp[r] - row[target[r]];
    }
  }
  template <class T>
  void cpu(In<T> logits, In<std::int32_t> target, Out<T> loss, Out<T> log_sum_exp) const;
  template <class T>
  void cuda(Stream stream, In<T> logits, In<std::int32_t> target, Out<T> loss, Out<T> log_sum_exp) const;
};

// dlogits[r, c] = (exp(logits[r, c] - log_sum_exp[r]) - (target[r] == class_begin + c)) dloss[r]
// on one tile of classes, which starts at class_begin: logits and dlogits are (rows, cols), the others (rows).
struct SoftmaxCrossEntropyGrad {
  static constexpr std::string_view name = "softmax_cross_entropy_grad";
  std::int32_t rows, cols, class_begin;

  std::array<std::int64_t, 5> extents(DType) const {
    const std::int64_t size = std::int64_t{rows} * cols;
    return {size, rows, rows, rows, size};
  }
  double flops() const { return 4.0 * rows * cols; }
  double sample(int operand, double u) const {
    return operand == 1 ? std::floor(u * (class_begin + cols + 1)) : operand == 2 ? 1 + u : 2 * u - 1;
  }
  static std::vector<SoftmaxCrossEntropyGrad> samples() {
    return {{1, 1, 0}, {3, 7, 4}, {5, 1, 1}, {0, 4, 0}, {17, 129, 30}, {128, 10, 0}, {256, 256, 0}};
  }

  void reference(In<double> logits, In<std::int32_t> target, In<double> log_sum_exp, In<double> dloss,
                 Out<double> dlogits) const {
    for (std::int64_t i = 0; i < std::int64_t{rows} * cols; ++i) {
      const std::int64_t r = i / cols, c = i % cols;
      dlogits[i] = (std::exp(logits[i] - log_sum_exp[r]) - (target[r] == class_begin + c)) * dloss[r];
    }
  }
  template <class T>
  void cpu(In<T> logits, In<std::int32_t> target, In<T> log_sum_exp, In<T> dloss, Out<T> dlogits) const;
  template <class T>
  void cuda(Stream stream, In<T> logits, In<std::int32_t> target, In<T> log_sum_exp, In<T> dloss,
            Out<T> dlogits) const;
};

}  // namespace tegula
