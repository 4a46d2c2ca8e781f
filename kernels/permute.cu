#include "kernels/launch.hpp"
#include "kernels/permute.hpp"

namespace tegula {

// Writes y in order.
template <class T>
__global__ void permute_kernel(std::int64_t n, Permute::Loops loops, const T* x, T* y) {
  for (std::int64_t i = first_element(); i < n; i += grid_elements()) y[i] = x[loops.offset_x(i)];
}

// y[j ld_y + i] = x[i ld_x + j], i < n, j < m, for each iteration of `outer`, through tiles of 32 x 32 in shared memory,
// so that both reads and writes are of whole lines.
template <class T>
__global__ void transpose_kernel(Permute::Loops outer, std::int64_t n, std::int64_t m, std::int64_t ld_x,
                                 std::int64_t ld_y, std::int64_t tiles, const T* x, T* y) {
  constexpr int side = 32;
  __shared__ T tile[side][side + 1];  // + 1: a column then lies in 32 different banks
  const std::int64_t across = (m + side - 1) / side, per_matrix = across * ((n + side - 1) / side);
  const int col = static_cast<int>(threadIdx.x) % side, row = static_cast<int>(threadIdx.x) / side;
  for (std::int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    const T* from = x + outer.offset_x(t / per_matrix);
    T* to = y + outer.offset_y(t / per_matrix);
    const std::int64_t i0 = t % per_matrix / across * side, j0 = t % per_matrix % across * side;
    for (int r = row; r < side; r += threads_per_block / side)
      if (i0 + r < n && j0 + col < m) tile[r][col] = from[(i0 + r) * ld_x + j0 + col];
    __syncthreads();
    for (int r = row; r < side; r += threads_per_block / side)
      if (j0 + r < m && i0 + col < n) to[(j0 + r) * ld_y + i0 + col] = tile[col][r];
    __syncthreads();
  }
}

template <class T>
void Permute::cuda(Stream stream, In<T> x, Out<T> y) const {
  const Loops all = loops();
  if (all.size() == 0) return;
  const Transpose t = transpose_of(all);
  if (t.stride_x == 1) {
    launch(permute_kernel<T>, stream, all.size(), all.size(), all, x.pointer, y.pointer);
    return;
  }
  const std::int64_t tiles = t.outer.size() * ((t.n + 31) / 32) * ((t.m + 31) / 32);
  launch(transpose_kernel<T>, stream, tiles * threads_per_block, t.outer, t.n, t.m, t.stride_x, t.stride_y,
         tiles, x.pointer, y.pointer);
}

const RegisterCuda<Permute> registered_permute_cuda;

}  // namespace tegula
