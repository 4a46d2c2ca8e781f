// Launching CUDA kernels that loop over n elements in steps of the whole grid.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "kernels/op.hpp"

namespace tegula {

inline constexpr unsigned threads_per_block = 256;

// Enough blocks to fill any GPU of today; the rest of the elements is the loop's.
inline unsigned blocks_for(std::int64_t n) {
  const std::int64_t blocks = (n + threads_per_block - 1) / threads_per_block;
  return static_cast<unsigned>(std::min<std::int64_t>(blocks, 4096));
}

// kernel<<<...>>>(arguments...) on `stream`, for n elements; nothing for none. Throws std::runtime_error if
// it cannot be launched.
template <class... P, class... A>
void launch(void (*kernel)(P...), Stream stream, std::int64_t n, A... arguments) {
  if (n == 0) return;
  kernel<<<blocks_for(n), threads_per_block, 0, stream>>>(arguments...);
  if (cudaError_t error = cudaGetLastError(); error != cudaSuccess)
    throw std::runtime_error(std::string("[cuda] kernel launch: ") + cudaGetErrorString(error));
}

// for (i = first_element(); i < n; i += grid_elements()), in a kernel
__device__ inline std::int64_t first_element() { return std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ inline std::int64_t grid_elements() { return std::int64_t{gridDim.x} * blockDim.x; }

}  // namespace tegula
