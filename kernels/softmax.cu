#include "kernels/combine.hpp"
#include "kernels/softmax.hpp"
#include "kernels/warp.hpp"

namespace tegula {

template <class T>
__global__ void softmax_kernel(std::int64_t rows, int cols, const T* x, T* y) {
  using C = Compute<T>;
  for (std::int64_t r = first_row(); r < rows; r += grid_rows()) {
    const T* row = x + r * cols;
    C most = -INFINITY, sum = 0;
    for (int c = lane(); c < cols; c += 32) most = Maximum{}(most, C(row[c]));
    most = over_lanes(most, Maximum{});
    for (int c = lane(); c < cols; c += 32) sum += exp_or_zero(C(row[c]) - most);
    const C scale = 1 / over_lanes(sum, Plus{});
    for (int c = lane(); c < cols; c += 32) y[r * cols + c] = T(exp_or_zero(C(row[c]) - most) * scale);
  }
}

template <class T>
__global__ void softmax_grad_kernel(std::int64_t rows, int cols, const T* y, const T* dy, T* dx) {
  using C = Compute<T>;
  for (std::int64_t r = first_row(); r < rows; r += grid_rows()) {
    C dot = 0;
    for (std::int64_t i = r * cols + lane(); i < (r + 1) * cols; i += 32) dot += C(y[i]) * C(dy[i]);
    dot = over_lanes(dot, Plus{});
    for (std::int64_t i = r * cols + lane(); i < (r + 1) * cols; i += 32)
      dx[i] = T(C(y[i]) * (C(dy[i]) - dot));
  }
}

template <class T>
void Softmax::cuda(Stream stream, In<T> x, Out<T> y) const {
  launch(softmax_kernel<T>, stream, 32 * std::int64_t{rows}, std::int64_t{rows}, cols, x.pointer, y.pointer);
}

template <class T>
void SoftmaxGrad::cuda(Stream stream, In<T> y, In<T> dy, Out<T> dx) const {
  launch(softmax_grad_kernel<T>, stream, 32 * std::int64_t{rows}, std::int64_t{rows}, cols, y.pointer,
         dy.pointer, dx.pointer);
}

const RegisterCuda<Softmax> registered_softmax_cuda;
const RegisterCuda<SoftmaxGrad> registered_softmax_grad_cuda;

}  // namespace tegula
