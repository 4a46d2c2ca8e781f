#include "kernels/blas.hpp"

#include <algorithm>

#include "kernels/simd.hpp"

#ifdef TEGULA_ONEDNN
#include <dnnl.h>
#endif
#ifdef TEGULA_BLAS
#include <cblas.h>
#endif

// oneDNN and OpenBLAS may or may not be built on OpenMP: where they are not, nobody defines this symbol.
extern "C" __attribute__((weak)) void omp_set_num_threads(int);

namespace tegula {

namespace {

// The scheduler above gives each core a task of its own: a library that forks inside one only gets in the way.
void stay_on_this_thread() {
  thread_local const bool openmp = [] {
    if (omp_set_num_threads != nullptr) omp_set_num_threads(1);
    return true;
  }();
#ifdef TEGULA_BLAS
  static const bool openblas = [] { return openblas_set_num_threads(1), true; }();
  static_cast<void>(openblas);
#endif
  static_cast<void>(openmp);
}

#ifdef TEGULA_BLAS
CBLAS_TRANSPOSE blas_op(bool transposed) { return transposed ? CblasTrans : CblasNoTrans; }
#else
// The product where no library is found: op(b) is packed in panels that stay in cache, and blocks of c in
// registers. Every element is summed in the order of k.
template <class T>
TEGULA_CLONES void plain_product(bool trans_a, bool trans_b, std::int64_t m, std::int64_t n, std::int64_t k,
                                 T alpha, const T* a, std::int64_t lda, const T* b, std::int64_t ldb, T beta,
                                 T* c, std::int64_t ldc) {
  constexpr int rows = 4, cols = 128 / sizeof(T), depth = 256;
  T panel[depth][cols];
  for (std::int64_t j0 = 0; j0 < n; j0 += cols) {
    const int width = static_cast<int>(std::min<std::int64_t>(cols, n - j0));
    for (std::int64_t k0 = 0; k0 < k; k0 += depth) {
      const int steps = static_cast<int>(std::min<std::int64_t>(depth, k - k0));
      for (int p = 0; p < steps; ++p)
        for (int j = 0; j < cols; ++j)
          panel[p][j] = j >= width ? T(0) : trans_b ? b[(j0 + j) * ldb + k0 + p] : b[(k0 + p) * ldb + j0 + j];
      for (std::int64_t i0 = 0; i0 < m; i0 += rows) {
        const int height = static_cast<int>(std::min<std::int64_t>(rows, m - i0));
        T sum[rows][cols] = {};
        for (int p = 0; p < steps; ++p)
          for (int i = 0; i < rows; ++i) {
            const std::int64_t row = i0 + std::min(i, height - 1), col = k0 + p;
            const T factor = trans_a ? a[col * lda + row] : a[row * lda + col];
#pragma omp simd
            for (int j = 0; j < cols; ++j) sum[i][j] += factor * panel[p][j];
          }
        for (int i = 0; i < height; ++i)
          for (int j = 0; j < width; ++j) {
            T& out = c[(i0 + i) * ldc + j0 + j];
            out = alpha * sum[i][j] + (k0 > 0 ? out : beta == 0 ? T(0) : beta * out);
          }
      }
    }
  }
}
#endif

// True where there is nothing to multiply; c is then beta c, which the libraries do not agree on.
template <class T>
bool is_empty(std::int64_t m, std::int64_t n, std::int64_t k, T beta, T* c, std::int64_t ldc) {
  if (k > 0) return m == 0 || n == 0;
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j) c[i * ldc + j] = beta == 0 ? T(0) : beta * c[i * ldc + j];
  return true;
}

// The inner product of two vectors: a product of one row and one column, for which libraries are several times slower than
// memory. In parts, whose sums are added in double precision.
template <class T>
TEGULA_CLONES double inner_product(std::int64_t k, const T* a, const T* b) {
  constexpr std::int64_t part = 4096;
  double sum = 0;
  for (std::int64_t p = 0; p < k; p += part)
    sum += fold(
        std::min(part, k - p), T(0), T(0), [=](std::int64_t i) TEGULA_INLINE { return a[p + i] * b[p + i]; },
        [](T x) TEGULA_INLINE { return x; }, [](T x, T y) TEGULA_INLINE { return x + y; });
  return sum;
}

// True where the product was one of two vectors that lie in memory as such.
template <class T>
bool is_inner_product(bool trans_a, bool trans_b, std::int64_t m, std::int64_t n, std::int64_t k, T alpha,
                      const T* a, std::int64_t lda, const T* b, std::int64_t ldb, T beta, T* c) {
  if (m != 1 || n != 1 || (trans_a && lda != 1) || (!trans_b && ldb != 1)) return false;
  *c = static_cast<T>(alpha * inner_product(k, a, b) + (beta == 0 ? T(0) : beta * *c));
  return true;
}

}  // namespace

void matrix_product(bool trans_a, bool trans_b, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
                    const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float beta, float* c,
                    std::int64_t ldc) {
  if (is_empty(m, n, k, beta, c, ldc)) return;
  if (is_inner_product(trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c)) return;
  stay_on_this_thread();
#if defined(TEGULA_ONEDNN)
  dnnl_sgemm(trans_a ? 'T' : 'N', trans_b ? 'T' : 'N', m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
#elif defined(TEGULA_BLAS)
  cblas_sgemm(CblasRowMajor, blas_op(trans_a), blas_op(trans_b), m, n, k, alpha, a, lda, b, ldb, beta, c,
              ldc);
#else
  plain_product(trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
#endif
}

void matrix_product(bool trans_a, bool trans_b, std::int64_t m, std::int64_t n, std::int64_t k, double alpha,
                    const double* a, std::int64_t lda, const double* b, std::int64_t ldb, double beta,
                    double* c, std::int64_t ldc) {
  if (is_empty(m, n, k, beta, c, ldc)) return;
  if (is_inner_product(trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c)) return;
  stay_on_this_thread();
#ifdef TEGULA_BLAS
  cblas_dgemm(CblasRowMajor, blas_op(trans_a), blas_op(trans_b), m, n, k, alpha, a, lda, b, ldb, beta, c,
              ldc);
#else
  plain_product(trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
#endif
}

std::string gemm_warning() {
#if defined(TEGULA_BLAS) && defined(__x86_64__)
  if (std::string(openblas_get_corename()) == "Prescott" && __builtin_cpu_supports("avx2"))
    return "OpenBLAS takes this CPU for a Prescott, several times slower than it is: set OPENBLAS_CORETYPE "
           "(Haswell, SkylakeX or Cooperlake) before the program starts";
#endif
  return {};
}

}  // namespace tegula
