#include "kernels/blas_cuda.hpp"
#include "kernels/conv.hpp"
#include "kernels/launch.hpp"

namespace tegula {

// The patches of `n / (patch pixels)` images: columns[image image_stride + q row_stride + p].
template <class T>
__global__ void fill_columns_kernel(ConvShape s, std::int64_t n, std::int64_t image_stride,
                                    std::int64_t row_stride, const T* x, T* columns) {
  const std::int64_t pixels = s.pixels(), patch = s.patch();
  for (std::int64_t i = first_element(); i < n; i += grid_elements()) {
    const int p = static_cast<int>(i % pixels), q = static_cast<int>(i / pixels % patch);
    const std::int64_t image = i / (pixels * patch);
    const int pixel = p % static_cast<int>(s.area());  // of its slice
    const int slice =
        p / static_cast<int>(s.area()) * s.stride_d - s.pad_d + q / s.kernel_area() % s.kernel_d;
    const int row = pixel / s.out_w() * s.stride_h - s.pad_h + q / s.kernel_w % s.kernel_h;
    const int col = pixel % s.out_w() * s.stride_w - s.pad_w + q % s.kernel_w;
    const std::int64_t channel = image * s.c_in + q / (s.kernel_d * s.kernel_area());
    const bool inside = slice >= 0 && slice < s.d && row >= 0 && row < s.h && col >= 0 && col < s.w;
    columns[image * image_stride + q * row_stride + p] =
        inside ? x[((channel * s.d + slice) * s.h + row) * s.w + col] : T(0.0f);
  }
}

// x = beta x + the sum of all columns that fill_columns_kernel takes from an element of x
template <class C, class T>
__global__ void sum_columns_kernel(ConvShape s, std::int64_t n, C beta, const C* columns, T* x) {
  const std::int64_t pixels = s.pixels();
  for (std::int64_t i = first_element(); i < n; i += grid_elements()) {
    const int slice = static_cast<int>(i / s.x_area() % s.d) + s.pad_d;
    const int row = static_cast<int>(i / s.w % s.h) + s.pad_h, col = static_cast<int>(i % s.w) + s.pad_w;
    const C* channel = columns + i / s.x_volume() * s.kernel_d * s.kernel_area() * pixels;
    C sum = 0;
    for (int k = 0; k < s.kernel_d; ++k) {
      const int z = (slice - k) / s.stride_d;
      if (slice < k || z * s.stride_d != slice - k || z >= s.out_d()) continue;
      for (int a = 0; a < s.kernel_h; ++a)
        for (int b = 0; b < s.kernel_w; ++b) {
          const int r = (row - a) / s.stride_h, c = (col - b) / s.stride_w;
          if (row < a || col < b || r * s.stride_h != row - a || c * s.stride_w != col - b) continue;
          if (r < s.out_h() && c < s.out_w())
            sum += channel[((k * s.kernel_h + a) * s.kernel_w + b) * pixels +
                           (z * s.out_h() + r) * s.out_w() + c];
        }
    }
    x[i] = T(beta == 0 ? sum : sum + beta * C(x[i]));
  }
}

// y = f(product + beta y + bias)
template <class F, class C, class T>
__global__ void conv_finish_kernel(F f, std::int64_t n, std::int64_t pixels, int channels, const C* product,
                                   C beta, const T* bias, T* y) {
  for (std::int64_t i = first_element(); i < n; i += grid_elements()) {
    C sum = product[i];
    if (beta != 0) sum += beta * C(y[i]);
    if (bias != nullptr) sum += C(bias[i / pixels % channels]);
    y[i] = T(f.value(sum));
  }
}

// to[(o images + i) pixels + p] = from[(i channels + o) pixels + p]: the images of a channel side by side
template <class T>
__global__ void by_channel_kernel(std::int64_t n, std::int64_t pixels, int channels, std::int64_t images,
                                  const T* from, T* to) {
  for (std::int64_t i = first_element(); i < n; i += grid_elements()) {
    const std::int64_t p = i % pixels, o = i / pixels % channels, image = i / pixels / channels;
    to[(o * images + image) * pixels + p] = from[i];
  }
}

template <class C, class T>
__global__ void conv_add_kernel(std::int64_t n, C beta, const C* sum, T* out) {
  for (std::int64_t i = first_element(); i < n; i += grid_elements())
    out[i] = T(beta == 0 ? sum[i] : sum[i] + beta * C(out[i]));
}

// Products are kept in f32 for bf16 and f16, so that the only rounding to those is that of the result.

template <class T>
void Conv::cuda(Stream stream, In<T> x, In<T> filters, Maybe<T> bias, Acc<T> y, Scratch<T> work) const {
  using C = Compute<T>;
  constexpr bool in_place = std::is_same_v<T, C>;
  const std::int64_t size = patch() * pixels();
  C* room = reinterpret_cast<C*>(work.pointer);
  T* columns = reinterpret_cast<T*>(room + group() * y_image());
  for (std::int64_t i = 0; i < n; i += group()) {
    const std::int64_t images = std::min<std::int64_t>(group(), n - i);
    T* out = y + i * y_image();
    C* product = room;
    if constexpr (in_place) product = out;
    if (!is_product())
      launch(fill_columns_kernel<T>, stream, images * size, *this, images * size, size, pixels(),
             x + i * x_image(), columns);
    cuda_matrix_product<T>(stream, false, false, c_out, pixels(), patch(), 1, filters, 0,
                           is_product() ? x + i * x_image() : columns, size, in_place ? beta : 0, product,
                           y_image(), images);
    if (in_place && !has_bias && activation == Activation::identity) continue;
    with_activation(activation, [&](auto f) {
      launch(conv_finish_kernel<decltype(f), C, T>, stream, images * y_image(), f, images * y_image(),
             pixels(), c_out, product, C(in_place ? 0 : beta), has_bias ? bias.pointer : nullptr, out);
    });
  }
}

template <class T>
void ConvInputGrad::cuda(Stream stream, In<T> filters, In<T> dy, Acc<T> dx, Scratch<T> work) const {
  using C = Compute<T>;
  const std::int64_t size = patch() * pixels();
  C* columns = reinterpret_cast<C*>(work.pointer);
  for (std::int64_t i = 0; i < n; i += group()) {
    const std::int64_t images = std::min<std::int64_t>(group(), n - i);
    cuda_matrix_product<T>(stream, true, false, patch(), pixels(), c_out, 1, filters, 0, dy + i * y_image(),
                           y_image(), 0, columns, size, images);
    launch(sum_columns_kernel<C, T>, stream, images * x_image(), *this, images * x_image(), C(beta), columns,
           dx + i * x_image());
  }
}

template <class T>
void ConvWeightGrad::cuda(Stream stream, In<T> x, In<T> dy, Acc<T> dfilters, Scratch<T> work) const {
  using C = Compute<T>;
  C* sum = reinterpret_cast<C*>(work.pointer);
  T* columns = reinterpret_cast<T*>(sum + filters_size());
  T* y_by_channel = columns + group() * patch() * pixels();
  cuda_matrix_product<T>(stream, false, false, c_out, patch(), 0, 1, dy, 0, x, 0, 0, sum, 0, 1);  // sum = 0
  for (std::int64_t i = 0; i < n; i += group()) {
    const std::int64_t images = std::min<std::int64_t>(group(), n - i), length = images * pixels();
    launch(fill_columns_kernel<T>, stream, patch() * length, *this, patch() * length, pixels(), length,
           x + i * x_image(), columns);
    launch(by_channel_kernel<T>, stream, c_out * length, c_out * length, pixels(), c_out, images,
           dy + i * y_image(), y_by_channel);
    cuda_matrix_product<T>(stream, false, true, c_out, patch(), length, 1, y_by_channel, 0, columns, 0, 1,
                           sum, 0, 1);
  }
  launch(conv_add_kernel<C, T>, stream, filters_size(), filters_size(), C(beta), sum, dfilters.pointer);
}

const RegisterCuda<Conv> registered_conv_cuda;
const RegisterCuda<ConvInputGrad> registered_conv_input_grad_cuda;
const RegisterCuda<ConvWeightGrad> registered_conv_weight_grad_cuda;

}  // namespace tegula
