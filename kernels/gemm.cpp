#include "kernels/gemm.hpp"

#include "kernels/blas.hpp"
#include "kernels/simd.hpp"

namespace tegula {

namespace {

template <class To, class From>
TEGULA_CLONES void convert(std::int64_t n, const From* from, To* to) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) to[i] = To(from[i]);
}

// c = f(product + bias) or, where there is a y, (product + bias) f'; the product may lie in c already.
template <class F, class C, class T>
TEGULA_CLONES void finish(F f, std::int64_t m, std::int64_t n, const C* product, const T* bias, const T* y,
                          T* c) {
  for (std::int64_t i = 0; i < m; ++i, product += n, c += n, y += y == nullptr ? 0 : n) {
#pragma GCC ivdep
    for (std::int64_t j = 0; j < n; ++j) {
      const C sum = bias == nullptr ? product[j] : product[j] + C(bias[j]);
      c[j] = T(y == nullptr ? f.value(sum) : sum * slope_at_output(f, C(y[j])));
    }
  }
}

}  // namespace

template <class T>
void Gemm::cpu(In<T> a, In<T> b, Maybe<T> bias, Maybe<T> y, Acc<T> c, Scratch<float> work) const {
  using C = Compute<T>;
  const std::int64_t size_a = std::int64_t{m} * k, size_b = std::int64_t{k} * n, size_c = std::int64_t{m} * n;
  auto multiply = [&](const C* matrix_a, const C* matrix_b, C* matrix_c) {
    matrix_product(trans_a, trans_b, m, n, k, C(alpha), matrix_a, trans_a ? m : k, matrix_b, trans_b ? k : n,
                   C(beta), matrix_c, n);
  };
  for (std::int64_t i = 0; i < batch; ++i) {
    T* out = c + i * size_c;
    const C* product;
    if constexpr (std::is_same_v<T, C>) {
      multiply(a + i * size_a, b + i * size_b, out);
      product = out;
      if (!has_bias && !has_slope && activation == Activation::identity) continue;
    } else {
      float *wide_a = work, *wide_b = wide_a + size_a, *wide_c = wide_b + size_b;
      convert(size_a, a + i * size_a, wide_a);
      convert(size_b, b + i * size_b, wide_b);
      if (beta != 0) convert(size_c, out, wide_c);
      multiply(wide_a, wide_b, wide_c);
      product = wide_c;
    }
    // Not by blocks of rows: c of a tile fits in the second-level cache, and this pass costs 1 % of the product.
    with_activation(activation, [&](auto f) {
      finish(f, m, n, product, has_bias ? bias.pointer : nullptr, has_slope ? y + i * size_c : nullptr, out);
    });
  }
}

const Register<Gemm> registered_gemm;

}  // namespace tegula
