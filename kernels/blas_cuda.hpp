// The matrix product on the GPU: cuBLAS, set up so that the same call gives the same bits every time.
#pragma once

#include "kernels/op.hpp"

namespace tegula {

// c[i] = alpha op(a[i]) op(b[i]) + beta c[i], i < batch, on dense row-major matrices that lie stride_* apart: op(a) is
// (m, k), op(b) is (k, n), c is (m, n). Asynchronous on `stream`; throws std::runtime_error where cuBLAS refuses.
// For float, double, bf16 and f16, whose last two's products are f32; f32 is never computed in TF32.
template <class T>
void cuda_matrix_product(Stream stream, bool trans_a, bool trans_b, std::int64_t m, std::int64_t n,
                         std::int64_t k, double alpha, const T* a, std::int64_t stride_a, const T* b,
                         std::int64_t stride_b, double beta, Compute<T>* c, std::int64_t stride_c,
                         std::int64_t batch);

}  // namespace tegula
