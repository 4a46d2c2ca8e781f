#include "kernels/conv.hpp"

#include "kernels/blas.hpp"
#include "kernels/simd.hpp"

namespace tegula {

namespace {

constexpr int block = 16;  // pixels moved at once, whatever is left of the row: see fill_columns

// columns[q, p] = the q-th element of the patch under pixel p of slice `slice` of y, of image x, taken from `slab`: what the
// slice reads of a channel, with its padding. Rows of images are short, so they are copied in whole blocks: what is written past
// the end of a row, the next row overwrites. `stride` is stride_h and stride_w where known at compile time, else 0.
template <int stride, class C, class T>
TEGULA_CLONES void fill_columns(const ConvShape& s, int slice, const T* x, C* slab, C* columns) {
  const int out_h = s.out_h(), out_w = s.out_w(), pitch = s.w + 2 * s.pad_w;
  const int down = stride > 0 ? stride : s.stride_h, right = stride > 0 ? stride : s.stride_w;
  const int front = slice * s.stride_d - s.pad_d;  // the first plane of x that the slice reads
  const int first = std::max(front, 0), last = std::min(front + s.kernel_d, s.d);
  std::fill_n(slab, s.slab_size(), C(0));
  for (int c = 0; c < s.c_in; ++c, x += s.x_volume()) {
    for (int plane = first; plane < last; ++plane) {
      const T* from = x + plane * s.x_area();
      C* to = slab + (plane - front) * s.plane_size() + s.pad_h * pitch + s.pad_w;
      for (int r = 0; r < s.h; ++r, from += s.w, to += pitch) {
#pragma GCC ivdep
        for (int col = 0; col < s.w; ++col) to[col] = C(from[col]);
      }
    }
    for (int k = 0; k < s.kernel_d; ++k)
      for (int i = 0; i < s.kernel_h; ++i)
        for (int j = 0; j < s.kernel_w; ++j)
          for (int r = 0; r < out_h; ++r, columns += out_w) {
            const C* from = slab + k * s.plane_size() + (r * down + i) * pitch + j;
            for (int begin = 0; begin < out_w; begin += block) {
#pragma omp simd
              for (int l = 0; l < block; ++l) columns[begin + l] = from[(begin + l) * right];
            }
          }
  }
}

// x = beta x + the sum of all columns[q, p] that fill_columns would take from an element of x, for one plane of x, which the
// slice reads as its k-th. `columns` and x are those of the first channel.
template <int stride, class C, class T>
TEGULA_CLONES void sum_columns(const ConvShape& s, int k, const C* columns, C beta, T* x) {
  const int out_h = s.out_h(), out_w = s.out_w();
  const int down = stride > 0 ? stride : s.stride_h, right = stride > 0 ? stride : s.stride_w;
  const unsigned limit = out_w * right;
  const std::int64_t area = s.area(), next = s.x_volume() - s.x_area();  // to the plane of the next channel
  columns += k * s.kernel_area() * area;
  for (int c = 0; c < s.c_in; ++c, columns += s.kernel_d * s.kernel_area() * area, x += next)
    for (int row = 0; row < s.h; ++row, x += s.w)
      for (int begin = 0; begin < s.w; begin += block) {
        C sum[block] = {};
        for (int i = 0; i < s.kernel_h; ++i) {
          const int y = row + s.pad_h - i, r = y / down;
          if (y < 0 || y % down != 0 || r >= out_h) continue;
          for (int j = 0; j < s.kernel_w; ++j) {
            const C* from = columns + (i * s.kernel_w + j) * area + std::int64_t{r} * out_w;
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
void with_stride(const ConvShape& s, F f) {
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

// A matrix whose rows lie `pitch` elements apart.
template <class C>
struct Rows {
  C* data;
  std::int64_t pitch;
};

// Rows of a tile as the type to compute in: themselves, or a dense copy in `room`.
template <class C, class T>
Rows<const C> widen(std::int64_t rows, std::int64_t cols, Rows<const T> tile, C* room) {
  if constexpr (std::is_same_v<C, T>) return tile;
  const bool dense = tile.pitch == cols;
  for (std::int64_t r = 0; r < (dense ? 1 : rows); ++r)
    convert(dense ? rows * cols : cols, tile.data + r * tile.pitch, room + r * cols);
  return {room, cols};
}

// y = beta y, where beta 0 ignores y
template <class C, class T>
TEGULA_CLONES void scale(std::int64_t n, C beta, T* y) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) y[i] = T(beta == 0 ? C(0) : beta * C(y[i]));
}

// y = beta y + x
template <class C, class T>
TEGULA_CLONES void add(std::int64_t n, const C* x, C beta, T* y) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) y[i] = T(beta == 0 ? x[i] : x[i] + beta * C(y[i]));
}

// The scratch memory of an op, in the type it computes in.
template <class T>
struct Work {
  using C = Compute<T>;
  C *columns, *slab, *filters, *y, *sums;
  Work(const ConvShape& s, T* memory)
      : columns(aligned(memory)),
        slab(columns + s.patch() * s.area() + block),
        filters(slab + s.slab_size()),
        y(filters + s.filters_size()),
        sums(y + s.c_out * s.area()) {}

 private:
  static C* aligned(T* memory) {  // scratch of bf16 may start between two floats
    auto address = reinterpret_cast<std::uintptr_t>(memory);
    return reinterpret_cast<C*>((address + alignof(C) - 1) / alignof(C) * alignof(C));
  }
};

template <class T>
Rows<const Compute<T>> columns_of(const ConvShape& s, int slice, const T* x, const Work<T>& work) {
  if (s.is_product())
    return widen(s.c_in, s.area(), Rows<const T>{x + slice * s.area(), s.pixels()}, work.columns);
  with_stride(s, [&](auto stride) { fill_columns<stride()>(s, slice, x, work.slab, work.columns); });
  return {work.columns, s.area()};
}

template <class F, class C, class T>
TEGULA_CLONES void finish(F f, int channels, std::int64_t area, Rows<const C> product, const T* bias,
                          Rows<T> y) {
  for (int o = 0; o < channels; ++o, product.data += product.pitch, y.data += y.pitch) {
    const C shift = bias == nullptr ? C(0) : C(bias[o]);
#pragma GCC ivdep
    for (std::int64_t p = 0; p < area; ++p) y.data[p] = T(f.value(product.data[p] + shift));
  }
}

// Calls f(image, slice of y) for all.
template <class F>
void for_each_slice(const ConvShape& s, F f) {
  for (std::int64_t i = 0; i < s.n; ++i)
    for (int z = 0; z < s.out_d(); ++z) f(i, z);
}

}  // namespace

template <class T>
void Conv::cpu(In<T> x, In<T> filters, Maybe<T> bias, Acc<T> y, Scratch<T> memory) const {
  using C = Compute<T>;
  const Work<T> work(*this, memory);
  const C* wide_filters = widen(1, filters_size(), Rows<const T>{filters, filters_size()}, work.filters).data;
  for_each_slice(*this, [&](std::int64_t i, int slice) {
    const Rows<const C> columns = columns_of<T>(*this, slice, x + i * x_image(), work);
    const Rows<T> out{y + i * y_image() + slice * area(), pixels()};
    Rows<C> product{work.y, area()};
    if constexpr (std::is_same_v<C, T>)
      product = out;
    else if (beta != 0)
      widen(c_out, area(), Rows<const T>{out.data, out.pitch}, product.data);
    matrix_product(false, false, c_out, area(), patch(), C(1), wide_filters, patch(), columns.data,
                   columns.pitch, C(beta), product.data, product.pitch);
    if (std::is_same_v<C, T> && !has_bias && activation == Activation::identity) return;
    with_activation(activation, [&](auto f) {
      finish(f, c_out, area(), Rows<const C>{product.data, product.pitch}, bias.pointer, out);
    });
  });
}

template <class T>
void ConvInputGrad::cpu(In<T> filters, In<T> dy, Acc<T> dx, Scratch<T> memory) const {
  using C = Compute<T>;
  const Work<T> work(*this, memory);
  const C* wide_filters = widen(1, filters_size(), Rows<const T>{filters, filters_size()}, work.filters).data;
  // A plane of dx gets sums from several slices, which add up in the type computed in.
  constexpr bool in_place = std::is_same_v<C, T>;
  const auto columns_of_slice = [&](std::int64_t i, int slice) {
    const Rows<const C> wide_dy =
        widen(c_out, area(), Rows<const T>{dy + i * y_image() + slice * area(), pixels()}, work.y);
    matrix_product(true, false, patch(), area(), c_out, C(1), wide_filters, patch(), wide_dy.data,
                   wide_dy.pitch, C(0), work.columns, area());
  };
  for (std::int64_t i = 0; i < n; ++i) {
    T* image = dx + i * x_image();
    if (is_flat()) {
      columns_of_slice(i, 0);
      with_stride(*this, [&](auto stride) { sum_columns<stride()>(*this, 0, work.columns, C(beta), image); });
      continue;
    }
    C* sums = work.sums;
    if constexpr (in_place) sums = image;
    scale(x_image(), C(in_place ? beta : 0), sums);
    for (int slice = 0; slice < out_d(); ++slice) {
      columns_of_slice(i, slice);
      for (int k = 0; k < kernel_d; ++k) {
        const int plane = slice * stride_d - pad_d + k;
        if (plane < 0 || plane >= d) continue;
        with_stride(*this, [&](auto stride) {
          sum_columns<stride()>(*this, k, work.columns, C(1), sums + plane * x_area());
        });
      }
    }
    if constexpr (!in_place) add(x_image(), sums, C(beta), image);
  }
}

template <class T>
void ConvWeightGrad::cpu(In<T> x, In<T> dy, Acc<T> dfilters, Scratch<T> memory) const {
  using C = Compute<T>;
  const Work<T> work(*this, memory);
  // The products are fast where the longer side of the sum lies along its rows.
  const bool transposed = patch() < c_out;
  C* sum = work.filters;
  std::fill_n(sum, filters_size(), C(0));
  for_each_slice(*this, [&](std::int64_t i, int slice) {
    const Rows<const C> columns = columns_of<T>(*this, slice, x + i * x_image(), work);
    const Rows<const C> wide_dy =
        widen(c_out, area(), Rows<const T>{dy + i * y_image() + slice * area(), pixels()}, work.y);
    if (transposed)
      matrix_product(false, true, patch(), c_out, area(), C(1), columns.data, columns.pitch, wide_dy.data,
                     wide_dy.pitch, C(1), sum, c_out);
    else
      matrix_product(false, true, c_out, patch(), area(), C(1), wide_dy.data, wide_dy.pitch, columns.data,
                     columns.pitch, C(1), sum, patch());
  });
  for (std::int64_t o = 0; o < c_out; ++o)
    for (std::int64_t q = 0; q < patch(); ++q) {
      const C total = sum[transposed ? q * c_out + o : o * patch() + q];
      T& out = dfilters[o * patch() + q];
      out = T(beta == 0 ? total : total + C(beta) * C(out));
    }
}

const Register<Conv> registered_conv;
const Register<ConvInputGrad> registered_conv_input_grad;
const Register<ConvWeightGrad> registered_conv_weight_grad;

}  // namespace tegula
