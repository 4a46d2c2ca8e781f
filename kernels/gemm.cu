#include "kernels/blas_cuda.hpp"
#include "kernels/gemm.hpp"
#include "kernels/launch.hpp"

namespace tegula {

// c = f(product + beta c + bias) or, where there is a y, (product + beta c + bias) f'
template <class F, class C, class T>
__global__ void gemm_finish_kernel(F f, std::int64_t size, std::int64_t n, const C* product, C beta,
                                   const T* bias, const T* y, T* c) {
  for (std::int64_t i = first_element(); i < size; i += grid_elements()) {
    C sum = product[i];
    if (beta != 0) sum += beta * C(c[i]);
    if (bias != nullptr) sum += C(bias[i % n]);
    c[i] = T(y == nullptr ? f.value(sum) : sum * slope_at_output(f, C(y[i])));
  }
}

template <class T>
void Gemm::cuda(Stream stream, In<T> a, In<T> b, Maybe<T> bias, Maybe<T> y, Acc<T> c,
                Scratch<float> work) const {
  using C = Compute<T>;
  const std::int64_t size_a = std::int64_t{m} * k, size_b = std::int64_t{k} * n, size_c = std::int64_t{m} * n;
  auto multiply = [&](C factor, C* product) {
    cuda_matrix_product<T>(stream, trans_a, trans_b, m, n, k, alpha, a, size_a, b, size_b, factor, product,
                           size_c, batch);
  };
  auto finish = [&](const C* product, C factor) {
    with_activation(activation, [&](auto f) {
      launch(gemm_finish_kernel<decltype(f), C, T>, stream, batch * size_c, f, batch * size_c,
             std::int64_t{n}, product, factor, has_bias ? bias.pointer : nullptr,
             has_slope ? y.pointer : nullptr, c.pointer);
    });
  };
  if constexpr (std::is_same_v<T, C>) {
    multiply(beta, c);
    if (has_bias || has_slope || activation != Activation::identity) finish(c, 0);
  } else {  // the only rounding to 16 bits is that of the result
    multiply(0, work);
    finish(work, beta);
  }
}

const RegisterCuda<Gemm> registered_gemm_cuda;

}  // namespace tegula
