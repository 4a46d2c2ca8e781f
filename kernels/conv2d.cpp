#include "kernels/conv2d.hpp"

#include "kernels/blas.hpp"
#include "kernels/simd.hpp"

namespace tegula {

namespace {

constexpr int block = 16;  // pixels moved at once, whatever is left of the row: see fill_columns

// columns[q, p] = the q-th element of the patch under output pixel p of image x, taken from `plane`, a channel with
// its padding. Rows of images are short, so they are copied in whole blocks: what is written past the end of a row,
// the next row overwrites. `stride` is stride_h and stride_w where known at compile time, else 0.
template <int stride, class C, class T>
TEGULA_CLONES void fill_columns(const Conv2dShape& s, const T* x, C* plane, C* columns) {
  const int out_h = s.out_h(), out_w = s.out_w(), pitch = s.w + 2 * s.pad_w;
  const int down = stride > 0 ? stride : s.stride_h, right = stride > 0 ? stride : s.stride_w;
  std::fill_n(plane, s.plane_size(), C(0));
  for (int c = 0; c < s.c_in; ++c) {
    for (int r = 0; r < s.h; ++r, x += s.w) {
      C* row = plane + (r + s.pad_h) * pitch + s.pad_w;
#pragma GCC ivdep
      for (int col = 0; col < s.w; ++col) row[col] = C(x[col]);
    }
    for (int i = 0; i < s.kernel_h; ++i)
      for (int j = 0; j < s.kernel_w; ++j)
        for (int r = 0; r < out_h; ++r, columns += out_w) {
          const C* from = plane + (r * down + i) * pitch + j;
          for (int begin = 0; begin < out_w; begin += block) {
#pragma omp simd
            for (int l = 0; l < block; ++l) columns[begin + l] = from[(begin + l) * right];
          }
        }
  }
}

// x = beta x + the sum of all columns[q, p] that fill_columns would take from an element of x
template <int stride, class C, class T>
TEGULA_CLONES void sum_columns(const Conv2dShape& s, const C* columns, C beta, T* x) {
  const int out_h = s.out_h(), out_w = s.out_w();
  const int down = stride > 0 ? stride : s.stride_h, right = stride > 0 ? stride : s.stride_w;
  const unsigned limit = out_w * right;
  const std::int64_t pixels = s.pixels();
  for (int c = 0; c < s.c_in; ++c, columns += s.kernel_h * s.kernel_w * pixels)
    for (int row = 0; row < s.h; ++row, x += s.w)
      for (int begin = 0; begin < s.w; begin += block) {
        C sum[block] = {};
        for (int i = 0; i < s.kernel_h; ++i) {
          const int y = row + s.pad_h - i, r = y / down;
          if (y < 0 || y % down != 0 || r >= out_h) continue;
          for (int j = 0; j < s.kernel_w; ++j) {
            const C* from = columns + (i * s.kernel_w + j) * pixels + std::int64_t{r} * out_w;
#pragma omp simd
            for (int l = 0; l < block; ++l) {
              const int col = begin + l + s.pad_w - j;
              sum[l] += unsigned(col) < limit && col % right == 0 ? from[col / right] : C(0);
            }
          }
        }
        const int width = std::min(block, s.w - begin);
#pragma GCC ivdep
        for (int l = 0; l < width; ++l)
          x[begin + l] = T(beta == 0 ? sum[l] : sum[l] + beta * C(x[begin + l]));
      }
}

// Calls f with the stride as a constant where it is a usual one.
template <class F>
void with_stride(const Conv2dShape& s, F f) {
  if (s.stride_h == 1 && s.stride_w == 1)
    f(std::integral_constant<int, 1>{});
  else if (s.stride_h == 2 && s.stride_w == 2)
    f(std::integral_constant<int, 2>{});
  else
    f(std::integral_constant<int, 0>{});
}

template <class C, class T>
TEGULA_CLONES void convert(std::int64_t n, const T* from, C* to) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) to[i] = C(from[i]);
}

// The tile as the type to compute in: itself, or a copy in `room`.
template <class C, class T>
const C* widen(std::int64_t n, const T* tile, C* room) {
  if constexpr (std::is_same_v<C, T>) return tile;
  convert(n, tile, room);
  return room;
}

// The scratch memory of an op, in the type it computes in.
template <class T>
struct Work {
  using C = Compute<T>;
  C *columns, *plane, *filters, *y;
  Work(const Conv2dShape& s, T* memory)
      : columns(aligned(memory)),
        plane(columns + s.patch() * s.pixels() + block),
        filters(plane + s.plane_size()),
        y(filters + s.filters_size()) {}

 private:
  static C* aligned(T* memory) {  // scratch of bf16 may start between two floats
    auto address = reinterpret_cast<std::uintptr_t>(memory);
    return reinterpret_cast<C*>((address + alignof(C) - 1) / alignof(C) * alignof(C));
  }
};

template <class T>
const Compute<T>* columns_of(const Conv2dShape& s, const T* x, const Work<T>& work) {
  if (s.is_product()) return widen(s.patch() * s.pixels(), x, work.columns);
  with_stride(s, [&](auto stride) { fill_columns<stride()>(s, x, work.plane, work.columns); });
  return work.columns;
}

template <class F, class C, class T>
TEGULA_CLONES void finish(F f, int channels, std::int64_t pixels, const C* product, const T* bias, T* y) {
  for (int o = 0; o < channels; ++o, product += pixels, y += pixels) {
    const C shift = bias == nullptr ? C(0) : C(bias[o]);
#pragma GCC ivdep
    for (std::int64_t p = 0; p < pixels; ++p) y[p] = T(f.value(product[p] + shift));
  }
}

}  // namespace

template <class T>
void Conv2d::cpu(In<T> x, In<T> filters, Maybe<T> bias, Acc<T> y, Scratch<T> memory) const {
  using C = Compute<T>;
  const Work<T> work(*this, memory);
  const std::int64_t x_image = std::int64_t{c_in} * h * w, y_image = c_out * pixels();
  const C* wide_filters = widen(filters_size(), filters.pointer, work.filters);
  for (std::int64_t i = 0; i < n; ++i) {
    const C* columns = columns_of(*this, x + i * x_image, work);
    T* out = y + i * y_image;
    C* product = work.y;
    if constexpr (std::is_same_v<C, T>)
      product = out;
    else if (beta != 0)
      convert(y_image, out, product);
    matrix_product(false, false, c_out, pixels(), patch(), C(1), wide_filters, patch(), columns, pixels(),
                   C(beta), product, pixels());
    if (std::is_same_v<C, T> && !has_bias && activation == Activation::identity) continue;
    with_activation(activation, [&](auto f) { finish(f, c_out, pixels(), product, bias.pointer, out); });
  }
}

template <class T>
void Conv2dInputGrad::cpu(In<T> filters, In<T> dy, Acc<T> dx, Scratch<T> memory) const {
  using C = Compute<T>;
  const Work<T> work(*this, memory);
  const std::int64_t x_image = std::int64_t{c_in} * h * w, y_image = c_out * pixels();
  const C* wide_filters = widen(filters_size(), filters.pointer, work.filters);
  for (std::int64_t i = 0; i < n; ++i) {
    const C* wide_dy = widen(y_image, dy + i * y_image, work.y);
    matrix_product(true, false, patch(), pixels(), c_out, C(1), wide_filters, patch(), wide_dy, pixels(),
                   C(0), work.columns, pixels());
    with_stride(*this, [&](auto stride) {
      sum_columns<stride()>(*this, work.columns, C(beta), dx.pointer + i * x_image);
    });
  }
}

template <class T>
void Conv2dWeightGrad::cpu(In<T> x, In<T> dy, Acc<T> dfilters, Scratch<T> memory) const {
  using C = Compute<T>;
  const Work<T> work(*this, memory);
  const std::int64_t x_image = std::int64_t{c_in} * h * w, y_image = c_out * pixels();
  // The products are fast where the longer side of the sum lies along its rows.
  const bool transposed = patch() < c_out;
  C* sum = work.filters;
  std::fill_n(sum, filters_size(), C(0));
  for (std::int64_t i = 0; i < n; ++i) {
    const C* columns = columns_of(*this, x + i * x_image, work);
    const C* wide_dy = widen(y_image, dy + i * y_image, work.y);
    if (transposed)
      matrix_product(false, true, patch(), c_out, pixels(), C(1), columns, pixels(), wide_dy, pixels(), C(1),
                     sum, c_out);
    else
      matrix_product(false, true, c_out, patch(), pixels(), C(1), wide_dy, pixels(), columns, pixels(), C(1),
                     sum, patch());
  }
  for (std::int64_t o = 0; o < c_out; ++o)
    for (std::int64_t q = 0; q < patch(); ++q) {
      const C total = sum[transposed ? q * c_out + o : o * patch() + q];
      T& out = dfilters[o * patch() + q];
      out = T(beta == 0 ? total : total + C(beta) * C(out));
    }
}

const Register<Conv2d> registered_conv2d;
const Register<Conv2dInputGrad> registered_conv2d_input_grad;
const Register<Conv2dWeightGrad> registered_conv2d_weight_grad;

}  // namespace tegula
