// CUDA kernels in which a warp shares a row: rows go round the warps of the grid, elements round the 32 lanes.
#pragma once

#include "kernels/launch.hpp"

namespace tegula {

// for (r = first_row(); r < rows; r += grid_rows()) for (c = lane(); c < cols; c += 32), launched for 32 rows elements
__device__ inline std::int64_t first_row() { return first_element() / 32; }
__device__ inline std::int64_t grid_rows() { return grid_elements() / 32; }
__device__ inline int lane() { return static_cast<int>(threadIdx.x % 32); }

// The values of all lanes combined, in the same order in every lane and every run.
template <class C, class Combine>
__device__ C over_lanes(C value, Combine combine) {
  for (int step = 16; step > 0; step /= 2) {
    const C other = __shfl_xor_sync(0xffffffffu, value, step);
    value = lane() & step ? combine(other, value) : combine(value, other);
  }
  return value;
}

}  // namespace tegula
