// Layer norm (Ba et al., 2016) and RMS norm (Zhang and Sennrich, 2019) of whole rows, and their gradients. Statistics are
// computed again going backward: a row is in the cache, and nothing has to be kept.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/dual.hpp"
#include "kernels/op.hpp"

namespace tegula {

// y[r, c] = n[r, c] weight[c] + bias[c];  x, y are (rows, cols), weight and bias (cols), bias may be absent
//   centred:  n = (x - mean x) / sqrt(mean (x - mean x)^2 + epsilon)      (layer norm)
//   else:     n = x / sqrt(mean x^2 + epsilon)                            (RMS norm)
struct NormShape {
  std::int32_t rows, cols;
  double epsilon;
  std::int32_t centred, has_bias;  // 0 or 1

  struct Statistics {
    double mean, scale;
  };
  Statistics statistics(const double* row) const {
    double mean = 0, squares = 0;
    for (int c = 0; centred && c < cols; ++c) mean += row[c] / cols;
    for (int c = 0; c < cols; ++c) squares += (row[c] - mean) * (row[c] - mean) / cols;
    return {mean, 1 / std::sqrt(squares + epsilon)};
  }
  std::int64_t size() const { return std::int64_t{rows} * cols; }
  template <class Op>
  static std::vector<Op> samples_of() {
    std::vector<Op> all;
    for (const NormShape& shape : shapes()) all.push_back({shape});
    return all;
  }
  static std::vector<NormShape> shapes() {
    return {{1, 1, 0.5, 0, 0},     {3, 7, 1e-5, 1, 1},    {5, 2, 1e-2, 1, 0},  {0, 4, 1e-5, 1, 1},
            {17, 129, 1e-6, 0, 0}, {17, 129, 1e-6, 1, 1}, {9, 33, 1e-5, 0, 1}, {256, 256, 1e-5, 1, 1}};
  }
};

template <class C>
struct NormMoments {  // of a row, as the kernels compute them
  C mean, scale;
};

struct Norm : NormShape {
  static constexpr std::string_view name = "norm";
  static constexpr double ulps = 64;

  std::array<std::int64_t, 4> extents(DType) const { return {size(), cols, has_bias ? cols : 0, size()}; }
  bool has(int operand) const { return operand != 2 || has_bias; }
  double flops() const { return 8.0 * rows * cols; }
  static std::vector<Norm> samples() { return samples_of<Norm>(); }

  void reference(In<double> x, In<double> weight, Maybe<double> bias, Out<double> y) const {
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto [mean, scale] = statistics(x + r * cols);
      for (int c = 0; c < cols; ++c)
        y[r * cols + c] = (x[r * cols + c] - mean) * scale * weight[c] + (has_bias ? bias[c] : 0);
    }
  }
  template <class T>
  void cpu(In<T> x, In<T> weight, Maybe<T> bias, Out<T> y) const;
  template <class T>
  void cuda(Stream stream, In<T> x, In<T> weight, Maybe<T> bias, Out<T> y) const;
};

// With g = dy weight:  dx = scale (g - n mean(g n) - (centred ? mean g : 0))
struct NormGrad : NormShape {
  static constexpr std::string_view name = "norm_grad";
  static constexpr double ulps = 128;

  std::array<std::int64_t, 4> extents(DType) const { return {size(), cols, size(), size()}; }
  double flops() const { return 14.0 * rows * cols; }
  static std::vector<NormGrad> samples() { return samples_of<NormGrad>(); }

  void reference(In<double> x, In<double> weight, In<double> dy, Out<double> dx) const {
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto [mean, scale] = statistics(x + r * cols);
      double along = 0, sum = 0;
      for (int c = 0; c < cols; ++c) {
        const double g = dy[r * cols + c] * weight[c];
        along += g * (x[r * cols + c] - mean) * scale / cols;
        if (centred) sum += g / cols;
      }
      for (int c = 0; c < cols; ++c) {
        const double n = (x[r * cols + c] - mean) * scale;
        dx[r * cols + c] = scale * (dy[r * cols + c] * weight[c] - n * along - sum);
      }
    }
  }
  template <class T>
  void cpu(In<T> x, In<T> weight, In<T> dy, Out<T> dx) const;
  template <class T>
  void cuda(Stream stream, In<T> x, In<T> weight, In<T> dy, Out<T> dx) const;
};

// dweight[c] = [dweight[c] +] sum_r dy[r, c] n[r, c], rows in order. bf16 and f16 are summed in f32 within a task.
struct NormWeightGrad : NormShape {
  static constexpr std::string_view name = "norm_weight_grad";
  static constexpr double ulps = 128;
  std::int64_t accumulate;  // 0 or 1

  bool accumulates() const { return accumulate != 0; }
  // A CPU sums in scratch memory, a GPU keeps the moments of the rows there.
  std::array<std::int64_t, 4> extents(DType) const {
    return {size(), size(), cols, std::max(std::int64_t{cols}, 4 * std::int64_t{rows})};
  }
  double flops() const { return 9.0 * rows * cols; }
  static std::vector<NormWeightGrad> samples() {
    std::vector<NormWeightGrad> all;
    for (const NormShape& shape : shapes()) all.push_back({shape, shape.has_bias});
    return all;
  }

  void reference(In<double> x, In<double> dy, Acc<double> dweight, Scratch<float>) const {
    for (int c = 0; c < cols && !accumulate; ++c) dweight[c] = 0;
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto [mean, scale] = statistics(x + r * cols);
      for (int c = 0; c < cols; ++c) dweight[c] += dy[r * cols + c] * (x[r * cols + c] - mean) * scale;
    }
  }
  template <class T>
  void cpu(In<T> x, In<T> dy, Acc<T> dweight, Scratch<float> work) const;
  template <class T>
  void cuda(Stream stream, In<T> x, In<T> dy, Acc<T> dweight, Scratch<float> work) const;
};

}  // namespace tegula
