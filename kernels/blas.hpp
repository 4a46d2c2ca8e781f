// The matrix product that gemm and the convolutions are built on: oneDNN's, a BLAS's, or plain loops.
#pragma once

#include <cstdint>
#include <string>

namespace tegula {

// c = alpha op(a) op(b) + beta c on row-major matrices: op(a) is (m, k), op(b) is (k, n), c is (m, n); ld* is the
// distance between the rows of a matrix as it is stored. Runs on the calling thread alone. beta == 0 ignores c.
void matrix_product(bool trans_a, bool trans_b, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
                    const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float beta, float* c,
                    std::int64_t ldc);
void matrix_product(bool trans_a, bool trans_b, std::int64_t m, std::int64_t n, std::int64_t k, double alpha,
                    const double* a, std::int64_t lda, const double* b, std::int64_t ldb, double beta,
                    double* c, std::int64_t ldc);

// What the user should know of the library behind matrix_product before a long run, or an empty string.
std::string gemm_warning();

}  // namespace tegula
