#include "kernels/combine.hpp"
#include "kernels/launch.hpp"
#include "kernels/pool.hpp"

namespace tegula {

namespace {

// One element of x or y: its plane, row and column, and the range of windows over it or of elements in it.
struct Place {
  std::int64_t plane;
  int row, col, top, bottom, left, right;
};
__device__ Place window_of(const Pool2dShape& s, std::int64_t i) {
  const int row = static_cast<int>(i / s.out_w() % s.out_h()), col = static_cast<int>(i % s.out_w());
  const int top = row * s.stride_h - s.pad_h, left = col * s.stride_w - s.pad_w;
  return {i / s.y_plane(),
          row,
          col,
          max(top, 0),
          min(top + s.kernel_h, s.h),
          max(left, 0),
          min(left + s.kernel_w, s.w)};
}
__device__ Place windows_over(const Pool2dShape& s, std::int64_t i) {
  const int row = static_cast<int>(i / s.w % s.h), col = static_cast<int>(i % s.w);
  auto first = [](int at, int kernel, int stride) { return at < kernel ? 0 : (at - kernel) / stride + 1; };
  return {i / s.x_plane(),
          row,
          col,
          first(row + s.pad_h, s.kernel_h, s.stride_h),
          min((row + s.pad_h) / s.stride_h + 1, s.out_h()),
          first(col + s.pad_w, s.kernel_w, s.stride_w),
          min((col + s.pad_w) / s.stride_w + 1, s.out_w())};
}

}  // namespace

template <class T>
__global__ void max_pool_kernel(Pool2dShape s, std::int64_t n, const T* x, T* y) {
  for (std::int64_t i = first_element(); i < n; i += grid_elements()) {
    const Place at = window_of(s, i);
    const T* from = x + at.plane * s.x_plane();
    Compute<T> most = -INFINITY;
    for (int r = at.top; r < at.bottom; ++r)
      for (int c = at.left; c < at.right; ++c) most = Maximum{}(most, Compute<T>(from[r * s.w + c]));
    y[i] = T(most);
  }
}

template <class T>
__global__ void avg_pool_kernel(Pool2dShape s, std::int64_t n, bool include_pad, const T* x, T* y) {
  for (std::int64_t i = first_element(); i < n; i += grid_elements()) {
    const Place at = window_of(s, i);
    const T* from = x + at.plane * s.x_plane();
    Compute<T> sum = 0;
    for (int r = at.top; r < at.bottom; ++r)
      for (int c = at.left; c < at.right; ++c) sum += Compute<T>(from[r * s.w + c]);
    y[i] = T(sum / s.count(include_pad, at.row, at.col));
  }
}

// The gradients gather from the windows over each element of x, in order: no atomics, so the bits are always the same.
template <class T>
__global__ void max_pool_grad_kernel(Pool2dShape s, std::int64_t n, const T* x, const T* y, const T* dy,
                                     T* dx) {
  using C = Compute<T>;
  for (std::int64_t i = first_element(); i < n; i += grid_elements()) {
    const Place at = windows_over(s, i);
    const T* from = x + at.plane * s.x_plane();
    C sum = 0;
    for (int r = at.top; r < at.bottom; ++r)
      for (int c = at.left; c < at.right; ++c) {
        const std::int64_t out = at.plane * s.y_plane() + r * s.out_w() + c;
        const Place window = window_of(s, out);
        int given = -1;  // the element that gets dy: the first that is the maximum
        for (int row = window.top; given < 0 && row < window.bottom; ++row)
          for (int col = window.left; given < 0 && col < window.right; ++col) {
            const C v = C(from[row * s.w + col]);
            if (v == C(y[out]) || v != v) given = row * s.w + col;
          }
        if (given == at.row * s.w + at.col) sum += C(dy[out]);
      }
    dx[i] = T(sum);
  }
}

template <class T>
__global__ void avg_pool_grad_kernel(Pool2dShape s, std::int64_t n, bool include_pad, const T* dy, T* dx) {
  using C = Compute<T>;
  for (std::int64_t i = first_element(); i < n; i += grid_elements()) {
    const Place at = windows_over(s, i);
    C sum = 0;
    for (int r = at.top; r < at.bottom; ++r)
      for (int c = at.left; c < at.right; ++c)
        sum += C(dy[at.plane * s.y_plane() + r * s.out_w() + c]) / s.count(include_pad, r, c);
    dx[i] = T(sum);
  }
}

template <class T>
void MaxPool2d::cuda(Stream stream, In<T> x, Out<T> y) const {
  launch(max_pool_kernel<T>, stream, y_size(), *this, y_size(), x.pointer, y.pointer);
}
template <class T>
void AvgPool2d::cuda(Stream stream, In<T> x, Out<T> y) const {
  launch(avg_pool_kernel<T>, stream, y_size(), *this, y_size(), count_include_pad, x.pointer, y.pointer);
}
template <class T>
void MaxPool2dGrad::cuda(Stream stream, In<T> x, In<T> y, In<T> dy, Out<T> dx, Scratch<float>) const {
  launch(max_pool_grad_kernel<T>, stream, x_size(), *this, x_size(), x.pointer, y.pointer, dy.pointer,
         dx.pointer);
}
template <class T>
void AvgPool2dGrad::cuda(Stream stream, In<T> dy, Out<T> dx, Scratch<float>) const {
  launch(avg_pool_grad_kernel<T>, stream, x_size(), *this, x_size(), count_include_pad, dy.pointer,
         dx.pointer);
}

const RegisterCuda<MaxPool2d> registered_max_pool2d_cuda;
const RegisterCuda<MaxPool2dGrad> registered_max_pool2d_grad_cuda;
const RegisterCuda<AvgPool2d> registered_avg_pool2d_cuda;
const RegisterCuda<AvgPool2dGrad> registered_avg_pool2d_grad_cuda;

}  // namespace tegula
