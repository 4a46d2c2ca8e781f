#include "kernels/blas_cuda.hpp"
#include "kernels/gemm.hpp"
#include "kernels/launch.hpp"

namespace tegula {

template <class F, class T>
__global__ void gemm_finish_kernel(F f, std::int64_t size, std::int64_t n, const T* bias, const T* y, T* c) {
  using C = Compute<T>;
  for (std::int64_t i = first_element(); i < size; i += grid_elements()) {
    const C sum = C(c[i]) + (bias == nullptr ? C(0) : C(bias[i % n]));
    c[i] = T(y == nullptr ? f.value(sum) : sum * slope_at_output(f, C(y[i])));
  }
}

template <class T>
void Gemm::cuda(Stream stream, In<T> a, In<T> b, Maybe<T> bias, Maybe<T> y, Acc<T> c, Scratch<float>) const {
  const std::int64_t size_a = std::int64_t{m} * k, size_b = std::int64_t{k} * n, size_c = std::int64_t{m} * n;
  cuda_matrix_product<T, T>(stream, trans_a, trans_b, m, n, k, alpha, a, size_a, b, size_b, beta, c, size_c,
                            batch);
  if (!has_bias && !has_slope && activation == Activation::identity) return;
  with_activation(activation, [&](auto f) {
    launch(gemm_finish_kernel<decltype(f), T>, stream, batch * size_c, f, batch * size_c, std::int64_t{n},
           has_bias ? bias.pointer : nullptr, has_slope ? y.pointer : nullptr, c.pointer);
  });
}

const RegisterCuda<Gemm> registered_gemm_cuda;

}  // namespace tegula
