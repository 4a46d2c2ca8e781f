// The matrix product of two tiles, with what follows it in a network (bias, activation; or, going backward, the
// slope of an activation) applied before the result leaves the cache.
#pragma once

#include "kernels/activation.hpp"
#include "kernels/op.hpp"

namespace tegula {

// c[b] = f(alpha op(a[b]) op(b[b]) + beta c[b] + bias) for each b of the batch, with dense row-major operands:
//   op(a) is (m, k), stored (k, m) where trans_a; op(b) is (k, n), stored (n, k) where trans_b;
//   bias is (n); y and c are (m, n).
// f is the activation. Where has_slope, f(v) = v * activation'(at the point whose activation is y) instead: the
// activation's backward, fused into the product that computes the gradient of its output.
struct Gemm {
  static constexpr std::string_view name = "gemm";
  static constexpr double ulps = 64;  // of sums of k products
  std::int32_t batch, m, n, k;
  bool trans_a, trans_b;
  float alpha, beta;
  bool has_bias;
  Activation activation;
  bool has_slope;

  // Scratch is for bf16 and f16: one matrix of each operand in f32 on a CPU, all products on a GPU.
  std::array<std::int64_t, 6> extents(DType dtype) const {
    const std::int64_t a = std::int64_t{m} * k, b = std::int64_t{k} * n, c = std::int64_t{m} * n;
    return {batch * a,        batch * b,
            has_bias ? n : 0, has_slope ? batch * c : 0,
            batch * c,        is_half(dtype) ? std::max(a + b + c, batch * c) : 0};
  }
  double flops() const { return 2.0 * batch * m * n * k; }
  bool accumulates() const { return beta != 0; }
  bool has(int operand) const { return operand == 2 ? has_bias : operand == 3 ? has_slope : true; }
  static std::vector<Gemm> samples() {
    using enum Activation;
    return {
        {1, 1, 1, 1, false, false, 1, 0, false, identity, false},
        {1, 3, 5, 7, false, false, 1, 0, true, relu, false},
        {2, 17, 33, 9, true, false, 0.5f, 1, true, tanh, false},
        {3, 8, 1, 16, false, true, -1, 0.25f, false, sigmoid, false},
        {1, 13, 21, 34, true, true, 2, 0, true, identity, false},
        {1, 4, 6, 0, false, false, 1, 1, true, relu, false},
        {2, 0, 6, 5, false, false, 1, 0, false, identity, false},
        {1, 19, 35, 70, false, true, 1, 0, false, relu, true},
        {2, 16, 10, 3, false, true, 1, 1, false, tanh, true},
        {1, 64, 10, 300, true, false, 1, 0, false, sigmoid, true},
        {3, 1, 1, 70, false, true, 2, 0, false, identity, false},
        {1, 1, 1, 100003, true, false, 0.5f, 1, true, relu, false},
        {1, 128, 512, 784, false, false, 1, 0, true, relu, false},
    };
  }

  void reference(In<double> a, In<double> b, Maybe<double> bias, Maybe<double> y, Acc<double> c,
                 Scratch<float>) const {
    for (std::int64_t i = 0; i < std::int64_t{batch} * m * n; ++i) {
      const std::int64_t matrix = i / (std::int64_t{m} * n), row = i / n % m, col = i % n;
      double sum = beta == 0 ? 0 : beta * c[i];
      for (std::int64_t p = 0; p < k; ++p) {
        const std::int64_t in_a = trans_a ? p * m + row : row * k + p,
                           in_b = trans_b ? col * k + p : p * n + col;
        sum += alpha * a[matrix * m * k + in_a] * b[matrix * k * n + in_b];
      }
      if (has_bias) sum += bias[col];
      with_activation(activation,
                      [&](auto f) { c[i] = has_slope ? sum * slope_at_output(f, y[i]) : f.value(sum); });
    }
  }
  template <class T>
  void cpu(In<T> a, In<T> b, Maybe<T> bias, Maybe<T> y, Acc<T> c, Scratch<float> work) const;
  template <class T>
  void cuda(Stream stream, In<T> a, In<T> b, Maybe<T> bias, Maybe<T> y, Acc<T> c, Scratch<float> work) const;
};

}  // namespace tegula
