// Convolution of images or volumes with a bank of filters, and its two gradients: products with the matrix of the patches
// ("im2col", Chellapilla et al. 2006), a slice of one image at a time so that the patches stay in cache. An image is a volume of
// depth 1: one set of kernels does both.
#pragma once

#include <algorithm>

#include "kernels/activation.hpp"
#include "kernels/op.hpp"

namespace tegula {

// x is (n, c_in, d, h, w), filters are (c_out, c_in, kernel_d, kernel_h, kernel_w), y is (n, c_out, out_d(), out_h(), out_w()); x
// is taken as padded by pad_d, pad_h and pad_w zeros on each side.
struct ConvShape {
  std::int32_t n, c_in, d, h, w, c_out, kernel_d, kernel_h, kernel_w, stride_d, stride_h, stride_w, pad_d,
      pad_h, pad_w;

  TEGULA_FN std::int32_t out_d() const { return (d + 2 * pad_d - kernel_d) / stride_d + 1; }
  TEGULA_FN std::int32_t out_h() const { return (h + 2 * pad_h - kernel_h) / stride_h + 1; }
  TEGULA_FN std::int32_t out_w() const { return (w + 2 * pad_w - kernel_w) / stride_w + 1; }
  TEGULA_FN std::int64_t area() const { return std::int64_t{out_h()} * out_w(); }  // of a slice of y
  TEGULA_FN std::int64_t pixels() const { return out_d() * area(); }
  TEGULA_FN std::int32_t kernel_area() const { return kernel_h * kernel_w; }
  TEGULA_FN std::int64_t patch() const { return std::int64_t{c_in} * kernel_d * kernel_area(); }
  TEGULA_FN std::int64_t x_area() const { return std::int64_t{h} * w; }
  TEGULA_FN std::int64_t x_volume() const { return d * x_area(); }
  std::int64_t x_image() const { return c_in * x_volume(); }
  std::int64_t y_image() const { return c_out * pixels(); }
  std::int64_t x_size() const { return n * x_image(); }
  std::int64_t filters_size() const { return c_out * patch(); }
  std::int64_t y_size() const { return n * y_image(); }
  double flops() const { return 2.0 * static_cast<double>(y_size()) * static_cast<double>(patch()); }

  // Images that a GPU takes at once: enough to fill it, within a few MiB of scratch. A CPU takes a slice of one.
  std::int32_t group() const {
    const std::int64_t most = (std::int64_t{4} << 20) / std::max<std::int64_t>(1, patch() * pixels());
    return static_cast<std::int32_t>(std::clamp<std::int64_t>(most, 1, std::max(n, 1)));
  }
  // No element of x is in more than one slice.
  bool is_flat() const { return d == 1 && kernel_d == 1 && pad_d == 0; }
  // The patches of an image are the image itself.
  bool is_product() const {
    return kernel_d == 1 && kernel_area() == 1 && stride_d == 1 && stride_h == 1 && stride_w == 1 &&
           pad_d == 0 && pad_h == 0 && pad_w == 0;
  }
  // One plane of one image with its padding; what a slice reads of a channel, and what a vector may read beyond.
  std::int64_t plane_size() const { return std::int64_t{h + 2 * pad_h} * (w + 2 * pad_w); }
  std::int64_t slab_size() const { return kernel_d * plane_size() + 16 * stride_w; }
  // Scratch elements of any of the three ops, all of it in the type computed in, of which bf16 and f16 need two each. A CPU
  // holds the patches of a slice, a padded channel of it, the filters, a slice of y and, to sum slices of bf16 and f16 up, an
  // image of x; a GPU patches and y of a group, and filters.
  std::int64_t scratch_size(DType dtype) const {
    const std::int64_t sums = is_half(dtype) && !is_flat() ? x_image() : 0;
    const std::int64_t cpu = patch() * area() + 17 + slab_size() + filters_size() + c_out * area() + sums;
    const std::int64_t gpu = group() * (patch() + c_out) * pixels() + filters_size();
    return (is_half(dtype) ? 2 : 1) * std::max(cpu, gpu);
  }
  // Calls f(index in x, in filters, in y) for each product of the convolution: the definition of all three ops.
  template <class F>
  void for_each_product(F f) const {
    for (std::int64_t y = 0; y < y_size(); ++y)
      for (std::int64_t q = 0; q < patch(); ++q) {
        const std::int64_t image = y / y_image(), channel = q / (kernel_d * kernel_area());
        const std::int64_t slice = y % pixels() / area() * stride_d - pad_d + q / kernel_area() % kernel_d;
        const std::int64_t row = y % area() / out_w() * stride_h - pad_h + q / kernel_w % kernel_h;
        const std::int64_t col = y % out_w() * stride_w - pad_w + q % kernel_w;
        if (slice >= 0 && slice < d && row >= 0 && row < h && col >= 0 && col < w)
          f((((image * c_in + channel) * d + slice) * h + row) * w + col, y / pixels() % c_out * patch() + q,
            y);
      }
  }
  static constexpr ConvShape image(std::int32_t n, std::int32_t c_in, std::int32_t h, std::int32_t w,
                                   std::int32_t c_out, std::int32_t kernel_h, std::int32_t kernel_w,
                                   std::int32_t stride_h, std::int32_t stride_w, std::int32_t pad_h,
                                   std::int32_t pad_w) {
    return {n, c_in, 1, h, w, c_out, 1, kernel_h, kernel_w, 1, stride_h, stride_w, 0, pad_h, pad_w};
  }
  static std::vector<ConvShape> shapes() {
    return {image(1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0),          image(2, 3, 5, 7, 4, 3, 3, 1, 1, 1, 1),
            image(1, 2, 9, 20, 3, 1, 1, 1, 1, 0, 0),         image(3, 2, 8, 19, 5, 3, 2, 2, 3, 1, 0),
            image(2, 1, 11, 6, 3, 5, 5, 2, 2, 2, 2),         image(0, 2, 4, 4, 2, 3, 3, 1, 1, 1, 1),
            image(1, 4, 33, 18, 2, 4, 4, 1, 1, 2, 2),        image(2, 2, 6, 6, 2, 3, 3, 3, 2, 0, 3),
            {2, 3, 4, 5, 7, 4, 3, 3, 3, 1, 1, 1, 1, 1, 1},   {1, 3, 5, 4, 6, 2, 1, 1, 1, 1, 1, 1, 0, 0, 0},
            {2, 1, 7, 6, 9, 3, 2, 3, 2, 3, 2, 2, 1, 0, 1},   {1, 2, 1, 5, 18, 2, 3, 1, 3, 1, 1, 1, 1, 0, 1},
            {0, 2, 3, 4, 4, 2, 3, 3, 3, 1, 1, 1, 1, 1, 1},   {1, 2, 6, 5, 5, 9, 4, 2, 2, 1, 2, 1, 2, 1, 0},
            {1, 8, 8, 16, 16, 8, 3, 3, 3, 1, 1, 1, 1, 1, 1}, image(4, 1, 28, 28, 32, 3, 3, 1, 1, 1, 1),
            image(4, 32, 14, 14, 64, 3, 3, 1, 1, 1, 1)};
  }
};

// y[i, o, p] = activation(sum_q filters[o, q] patches(x[i])[q, p] + beta y[i, o, p] + bias[o]);  bias is (c_out)
struct Conv : ConvShape {
  static constexpr std::string_view name = "conv";
  static constexpr double ulps = 64;
  float beta;
  bool has_bias;
  Activation activation;

  std::array<std::int64_t, 5> extents(DType dtype) const {
    return {x_size(), filters_size(), has_bias ? c_out : 0, y_size(), scratch_size(dtype)};
  }
  bool accumulates() const { return beta != 0; }
  bool has(int operand) const { return operand == 2 ? has_bias : true; }
  static std::vector<Conv> samples() {
    std::vector<Conv> all;
    for (const ConvShape& shape : shapes()) {
      all.push_back({shape, 0.5f, false, Activation::identity});
      all.push_back({shape, 0, true, Activation::relu});
    }
    return all;
  }

  void reference(In<double> x, In<double> filters, Maybe<double> bias, Acc<double> y, Scratch<double>) const {
    for (std::int64_t i = 0; i < y_size(); ++i)
      y[i] = (beta == 0 ? 0 : beta * y[i]) + (has_bias ? bias[i / pixels() % c_out] : 0);
    for_each_product(
        [&](auto in_x, auto in_filters, auto in_y) { y[in_y] += x[in_x] * filters[in_filters]; });
    with_activation(activation, [&](auto f) {
      for (std::int64_t i = 0; i < y_size(); ++i) y[i] = f.value(y[i]);
    });
  }
  template <class T>
  void cpu(In<T> x, In<T> filters, Maybe<T> bias, Acc<T> y, Scratch<T> work) const;
  template <class T>
  void cuda(Stream stream, In<T> x, In<T> filters, Maybe<T> bias, Acc<T> y, Scratch<T> work) const;
};

// dx = beta dx + the gradient of sum dy conv(x, filters) with respect to x
struct ConvInputGrad : ConvShape {
  static constexpr std::string_view name = "conv_input_grad";
  static constexpr double ulps = 64;
  float beta;

  std::array<std::int64_t, 4> extents(DType dtype) const {
    return {filters_size(), y_size(), x_size(), scratch_size(dtype)};
  }
  bool accumulates() const { return beta != 0; }
  static std::vector<ConvInputGrad> samples() {
    std::vector<ConvInputGrad> all;
    for (const ConvShape& shape : shapes()) {
      all.push_back({shape, 0.5f});
      all.push_back({shape, 0});
    }
    return all;
  }

  void reference(In<double> filters, In<double> dy, Acc<double> dx, Scratch<double>) const {
    for (std::int64_t i = 0; i < x_size(); ++i) dx[i] = beta == 0 ? 0 : beta * dx[i];
    for_each_product(
        [&](auto in_x, auto in_filters, auto in_y) { dx[in_x] += filters[in_filters] * dy[in_y]; });
  }
  template <class T>
  void cpu(In<T> filters, In<T> dy, Acc<T> dx, Scratch<T> work) const;
  template <class T>
  void cuda(Stream stream, In<T> filters, In<T> dy, Acc<T> dx, Scratch<T> work) const;
};

// dfilters = beta dfilters + the gradient of sum dy conv(x, filters) with respect to filters, images in order
struct ConvWeightGrad : ConvShape {
  static constexpr std::string_view name = "conv_weight_grad";
  static constexpr double ulps = 64;
  float beta;

  std::array<std::int64_t, 4> extents(DType dtype) const {
    return {x_size(), y_size(), filters_size(), scratch_size(dtype)};
  }
  bool accumulates() const { return beta != 0; }
  static std::vector<ConvWeightGrad> samples() {
    std::vector<ConvWeightGrad> all;
    for (const ConvShape& shape : shapes()) {
      all.push_back({shape, 0.5f});
      all.push_back({shape, 0});
    }
    return all;
  }

  void reference(In<double> x, In<double> dy, Acc<double> dfilters, Scratch<double>) const {
    for (std::int64_t i = 0; i < filters_size(); ++i) dfilters[i] = beta == 0 ? 0 : beta * dfilters[i];
    for_each_product(
        [&](auto in_x, auto in_filters, auto in_y) { dfilters[in_filters] += x[in_x] * dy[in_y]; });
  }
  template <class T>
  void cpu(In<T> x, In<T> dy, Acc<T> dfilters, Scratch<T> work) const;
  template <class T>
  void cuda(Stream stream, In<T> x, In<T> dy, Acc<T> dfilters, Scratch<T> work) const;
};

}  // namespace tegula
