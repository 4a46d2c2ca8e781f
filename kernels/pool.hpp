// Max and average pooling over windows of an image, and their gradients.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/op.hpp"

namespace tegula {

// x is `planes` images of (h, w): batch times channels; y is (planes, out_h(), out_w()). Window (r, c) starts at
// x[r stride_h - pad_h, c stride_w - pad_w]; padding may be at most half the kernel, so that none is empty.
struct Pool2dShape {
  std::int32_t planes, h, w, kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w;

  TEGULA_FN std::int32_t out_h() const { return (h + 2 * pad_h - kernel_h) / stride_h + 1; }
  TEGULA_FN std::int32_t out_w() const { return (w + 2 * pad_w - kernel_w) / stride_w + 1; }
  TEGULA_FN std::int64_t x_plane() const { return std::int64_t{h} * w; }
  TEGULA_FN std::int64_t y_plane() const { return std::int64_t{out_h()} * out_w(); }
  std::int64_t x_size() const { return planes * x_plane(); }
  std::int64_t y_size() const { return planes * y_plane(); }
  double flops() const { return 1.0 * kernel_h * kernel_w * static_cast<double>(y_size()); }

  // Elements of window (r, c), in all or inside x.
  TEGULA_FN std::int32_t count(bool include_pad, int r, int c) const {
    const int top = r * stride_h - pad_h, left = c * stride_w - pad_w;
    const int rows = (top + kernel_h < h ? top + kernel_h : h) - (top > 0 ? top : 0);
    const int cols = (left + kernel_w < w ? left + kernel_w : w) - (left > 0 ? left : 0);
    return include_pad ? kernel_h * kernel_w : rows * cols;
  }
  // Calls f(index in x, index in y) for each element of each window, in the order of y and then of x.
  template <class F>
  void for_each_pair(F f) const {
    for (std::int64_t y = 0; y < y_size(); ++y)
      for (int k = 0; k < kernel_h * kernel_w; ++k) {
        const std::int64_t row = y / out_w() % out_h() * stride_h - pad_h + k / kernel_w;
        const std::int64_t col = y % out_w() * stride_w - pad_w + k % kernel_w;
        if (row >= 0 && row < h && col >= 0 && col < w) f(y / y_plane() * x_plane() + row * w + col, y);
      }
  }
  // Scratch elements of the gradients: overlapping windows add to an element of dx several times, in f32 also for bf16 and f16.
  std::int64_t scratch_size(DType dtype) const {
    const bool overlaps = kernel_h > stride_h || kernel_w > stride_w;
    return is_half(dtype) && overlaps ? x_plane() : 0;
  }
  static std::vector<Pool2dShape> shapes() {
    return {{1, 1, 1, 1, 1, 1, 1, 0, 0},   {3, 5, 7, 2, 2, 2, 2, 0, 0},   {2, 9, 70, 3, 3, 2, 2, 1, 1},
            {2, 8, 11, 3, 2, 1, 1, 1, 0},  {0, 4, 4, 2, 2, 2, 2, 0, 0},   {1, 10, 13, 2, 3, 3, 4, 1, 1},
            {4, 14, 14, 2, 2, 2, 2, 0, 0}, {3, 12, 80, 2, 2, 2, 2, 0, 0}, {256, 28, 28, 2, 2, 2, 2, 0, 0}};
  }
};

// y = the maximum of each window, NaN where it holds one; padding does not count
struct MaxPool2d : Pool2dShape {
  static constexpr std::string_view name = "max_pool2d";

  std::array<std::int64_t, 2> extents(DType) const { return {x_size(), y_size()}; }
  static std::vector<MaxPool2d> samples() {
    std::vector<MaxPool2d> all;
    for (const Pool2dShape& shape : shapes()) all.push_back({shape});
    return all;
  }

  void reference(In<double> x, Out<double> y) const {
    std::fill_n(y.pointer, y_size(), -INFINITY);
    for_each_pair([&](auto i, auto o) { y[o] = x[i] > y[o] || x[i] != x[i] ? x[i] : y[o]; });
  }
  template <class T>
  void cpu(In<T> x, Out<T> y) const;
  template <class T>
  void cuda(Stream stream, In<T> x, Out<T> y) const;
};

// dx = the gradient of sum dy max_pool2d(x), where y = max_pool2d(x): dy goes to the first element of each window, in
// the order of rows, that equals y (or is NaN).
struct MaxPool2dGrad : Pool2dShape {
  static constexpr std::string_view name = "max_pool2d_grad";

  std::array<std::int64_t, 5> extents(DType dtype) const {
    return {x_size(), y_size(), y_size(), x_size(), scratch_size(dtype)};
  }
  // x and y take few values, so that y often is in its window, and more than once.
  double sample(int operand, double u) const { return operand < 2 ? std::floor(3 * u) : 2 * u - 1; }
  static std::vector<MaxPool2dGrad> samples() {
    std::vector<MaxPool2dGrad> all;
    for (const Pool2dShape& shape : shapes()) all.push_back({shape});
    return all;
  }

  void reference(In<double> x, In<double> y, In<double> dy, Out<double> dx, Scratch<float>) const {
    std::fill_n(dx.pointer, x_size(), 0.0);
    std::int64_t given = -1;  // the last window whose dy has found its element
    for_each_pair([&](auto i, auto o) {
      if (given == o || (x[i] != y[o] && x[i] == x[i])) return;
      dx[i] += dy[o];
      given = o;
    });
  }
  template <class T>
  void cpu(In<T> x, In<T> y, In<T> dy, Out<T> dx, Scratch<float> work) const;
  template <class T>
  void cuda(Stream stream, In<T> x, In<T> y, In<T> dy, Out<T> dx, Scratch<float> work) const;
};

// y = the mean of each window, of kernel_h kernel_w elements where padding counts (as zeros), else of those inside x
struct AvgPool2d : Pool2dShape {
  static constexpr std::string_view name = "avg_pool2d";
  bool count_include_pad;

  std::array<std::int64_t, 2> extents(DType) const { return {x_size(), y_size()}; }
  static std::vector<AvgPool2d> samples() {
    std::vector<AvgPool2d> all;
    for (const Pool2dShape& shape : shapes()) {
      all.push_back({shape, false});
      all.push_back({shape, true});
    }
    return all;
  }

  void reference(In<double> x, Out<double> y) const {
    std::fill_n(y.pointer, y_size(), 0.0);
    for_each_pair(
        [&](auto i, auto o) { y[o] += x[i] / count(count_include_pad, o / out_w() % out_h(), o % out_w()); });
  }
  template <class T>
  void cpu(In<T> x, Out<T> y) const;
  template <class T>
  void cuda(Stream stream, In<T> x, Out<T> y) const;
};

// dx = the gradient of sum dy avg_pool2d(x)
struct AvgPool2dGrad : Pool2dShape {
  static constexpr std::string_view name = "avg_pool2d_grad";
  bool count_include_pad;

  std::array<std::int64_t, 3> extents(DType dtype) const { return {y_size(), x_size(), scratch_size(dtype)}; }
  static std::vector<AvgPool2dGrad> samples() {
    std::vector<AvgPool2dGrad> all;
    for (const Pool2dShape& shape : shapes()) {
      all.push_back({shape, false});
      all.push_back({shape, true});
    }
    return all;
  }

  void reference(In<double> dy, Out<double> dx, Scratch<float>) const {
    std::fill_n(dx.pointer, x_size(), 0.0);
    for_each_pair([&](auto i, auto o) {
      dx[i] += dy[o] / count(count_include_pad, o / out_w() % out_h(), o % out_w());
    });
  }
  template <class T>
  void cpu(In<T> dy, Out<T> dx, Scratch<float> work) const;
  template <class T>
  void cuda(Stream stream, In<T> dy, Out<T> dx, Scratch<float> work) const;
};

}  // namespace tegula
