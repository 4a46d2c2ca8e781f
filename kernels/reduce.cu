#include "kernels/combine.hpp"
#include "kernels/launch.hpp"
#include "kernels/reduce.hpp"

namespace tegula {

// The values of the `lanes` threads (threadIdx.x / outputs) that share an output, combined as a binary tree.
template <class Combine>
__device__ double over_block(double value, int lanes, int outputs, Combine combine, double* shared) {
  shared[threadIdx.x] = value;
  __syncthreads();
  for (int half = lanes / 2; half > 0; half /= 2) {
    if (threadIdx.x < half * outputs)
      shared[threadIdx.x] = combine(shared[threadIdx.x], shared[threadIdx.x + half * outputs]);
    __syncthreads();
  }
  value = shared[threadIdx.x % outputs];
  __syncthreads();
  return value;
}

// A block makes `outputs` neighbouring elements of y at a time: 1 where the innermost dimension of x is reduced, so that
// its threads read along it, else 32, along which they read.
template <class T>
__global__ void reduce_kernel(Reduce op, Reduce::Loops kept, Reduce::Loops reduced, int outputs, const T* x,
                              T* y) {
  __shared__ double shared[threads_per_block];
  const int lanes = threads_per_block / outputs, lane = static_cast<int>(threadIdx.x) / outputs;
  const std::int64_t n = reduced.size(), size = kept.size();
  for (std::int64_t begin = std::int64_t{blockIdx.x} * outputs; begin < size;
       begin += std::int64_t{gridDim.x} * outputs) {
    const std::int64_t i = begin + threadIdx.x % outputs;
    const T* from = x + kept.offset(i < size ? i : begin);
    double total = 0, shift = 0;
    if (op.kind != Reduce::Kind::sum) {
      double most = -INFINITY;
      for (std::int64_t j = lane; j < n; j += lanes)
        most = Maximum{}(most, double(Compute<T>(from[reduced.offset(j)])));
      total = over_block(most, lanes, outputs, Maximum{}, shared);
      shift = finite_or_zero(total);
    }
    if (op.kind != Reduce::Kind::max) {
      double sum = 0;
      for (std::int64_t j = lane; j < n; j += lanes) {
        const auto v = Compute<T>(from[reduced.offset(j)]);
        sum += op.kind == Reduce::Kind::sum ? v : exp_or_zero(v - Compute<T>(shift));
      }
      total = over_block(sum, lanes, outputs, Plus{}, shared);
    }
    if (lane == 0 && i < size)
      y[i] = T(Compute<T>(op.result(total, shift, op.accumulate ? double(Compute<T>(y[i])) : -INFINITY)));
  }
}

template <class T>
void Reduce::cuda(Stream stream, In<T> x, Acc<T> y) const {
  const Loops kept = loops(false), reduced = loops(true);
  const int outputs = kept.count == 0 || kept.stride[kept.count - 1] != 1 ? 1 : 32;
  launch(reduce_kernel<T>, stream, (kept.size() + outputs - 1) / outputs * threads_per_block, *this, kept,
         reduced, outputs, x.pointer, y.pointer);
}

const RegisterCuda<Reduce> registered_reduce_cuda;

}  // namespace tegula
