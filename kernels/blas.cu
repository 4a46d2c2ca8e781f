#include <cublas_v2.h>

#include <vector>

#include "kernels/blas_cuda.hpp"
#include "kernels/launch.hpp"

namespace tegula {

namespace {

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw std::runtime_error(std::string("[cublas] ") + what + ": " + cublasGetStatusString(status));
}
void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess)
    throw std::runtime_error(std::string("[cuda] ") + what + ": " + cudaGetErrorString(status));
}

// The calling thread's handle for `stream`. cuBLAS repeats its bits only if kernels that may run at the same time do not
// share a workspace, so each stream of each device has its own, of the size NVIDIA advises for Hopper.
cublasHandle_t handle_of(Stream stream) {
  constexpr std::size_t workspace_bytes = std::size_t{32} << 20;
  struct Entry {
    int device;
    Stream stream;
    cublasHandle_t handle;
  };
  thread_local std::vector<Entry>
      entries;  // never destroyed: at the end of a thread the device may be gone already
  int device = 0;
  check(cudaGetDevice(&device), "no current device");
  for (const Entry& entry : entries)
    if (entry.device == device && entry.stream == stream) return entry.handle;
  cublasHandle_t handle = nullptr;
  void* workspace = nullptr;
  check(cublasCreate(&handle), "cannot be initialised");
  check(cudaMalloc(&workspace, workspace_bytes), "no memory for the workspace of cuBLAS");
  check(cublasSetStream(handle, stream), "cannot use the stream");
  check(cublasSetWorkspace(handle, workspace, workspace_bytes), "cannot use the workspace");
  check(cublasSetMathMode(
            handle, cublasMath_t(CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION)),
        "cannot set the precision");
  entries.push_back({device, stream, handle});
  return handle;
}

template <class T>
constexpr cudaDataType_t cuda_type = std::is_same_v<T, float>    ? CUDA_R_32F
                                     : std::is_same_v<T, double> ? CUDA_R_64F
                                     : std::is_same_v<T, bf16>   ? CUDA_R_16BF
                                                                 : CUDA_R_16F;
template <class T>
constexpr cublasComputeType_t compute_type = std::is_same_v<T, float>    ? CUBLAS_COMPUTE_32F_PEDANTIC
                                             : std::is_same_v<T, double> ? CUBLAS_COMPUTE_64F_PEDANTIC
                                                                         : CUBLAS_COMPUTE_32F;

template <class C>
__global__ void scale_kernel(std::int64_t size, std::int64_t stride, std::int64_t n, C beta, C* c) {
  for (std::int64_t i = first_element(); i < n; i += grid_elements()) {
    C& out = c[i / size * stride + i % size];
    out = beta == 0 ? C(0) : beta * out;
  }
}

}  // namespace

template <class T>
void cuda_matrix_product(Stream stream, bool trans_a, bool trans_b, std::int64_t m, std::int64_t n,
                         std::int64_t k, double alpha, const T* a, std::int64_t stride_a, const T* b,
                         std::int64_t stride_b, double beta, Compute<T>* c, std::int64_t stride_c,
                         std::int64_t batch) {
  using C = Compute<T>;
  if (m == 0 || n == 0 || batch == 0) return;
  if (k == 0) {
    launch(scale_kernel<C>, stream, batch * m * n, m * n, stride_c, batch * m * n, C(beta), c);
    return;
  }
  // cuBLAS reads by columns, so it sees the transposes of our matrices, and c^T = op(b)^T op(a)^T.
  const C alpha_c(alpha), beta_c(beta);
  check(cublasGemmStridedBatchedEx(
            handle_of(stream), trans_b ? CUBLAS_OP_T : CUBLAS_OP_N, trans_a ? CUBLAS_OP_T : CUBLAS_OP_N, n, m,
            k, &alpha_c, b, cuda_type<T>, trans_b ? k : n, stride_b, a, cuda_type<T>, trans_a ? m : k,
            stride_a, &beta_c, c, cuda_type<C>, n, stride_c, batch, compute_type<T>, CUBLAS_GEMM_DEFAULT),
        "matrix product");
}

template void cuda_matrix_product(Stream, bool, bool, std::int64_t, std::int64_t, std::int64_t, double,
                                  const float*, std::int64_t, const float*, std::int64_t, double, float*,
                                  std::int64_t, std::int64_t);
template void cuda_matrix_product(Stream, bool, bool, std::int64_t, std::int64_t, std::int64_t, double,
                                  const double*, std::int64_t, const double*, std::int64_t, double, double*,
                                  std::int64_t, std::int64_t);
template void cuda_matrix_product(Stream, bool, bool, std::int64_t, std::int64_t, std::int64_t, double,
                                  const bf16*, std::int64_t, const bf16*, std::int64_t, double, float*,
                                  std::int64_t, std::int64_t);
template void cuda_matrix_product(Stream, bool, bool, std::int64_t, std::int64_t, std::int64_t, double,
                                  const f16*, std::int64_t, const f16*, std::int64_t, double, float*,
                                  std::int64_t, std::int64_t);

}  // namespace tegula
