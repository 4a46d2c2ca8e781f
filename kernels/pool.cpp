#include "kernels/pool.hpp"

#include "kernels/simd.hpp"

namespace tegula {

namespace {

bool is_2x2(const Pool2dShape& s) {  // windows of 2 x 2 side by side, by far the most frequent case
  return s.kernel_h == 2 && s.kernel_w == 2 && s.stride_h == 2 && s.stride_w == 2 && s.pad_h == 0 &&
         s.pad_w == 0;
}

// Calls f(width, begin) for blocks of [0, n) whose width is a constant, so that they become vector code. Rows of
// images are short: the last block is not cut off but moved back over the one before, and computed again.
template <int width, class F>
TEGULA_FN void in_blocks_of(int n, F f) {
  for (int begin = 0; begin < n; begin += width)
    f(std::integral_constant<int, width>{}, begin + width <= n ? begin : n - width);
}
template <class F>
TEGULA_FN void in_blocks(int n, F f) {
  if (n >= 16)
    in_blocks_of<16>(n, f);
  else if (n >= 8)
    in_blocks_of<8>(n, f);
  else if (n >= 4)
    in_blocks_of<4>(n, f);
  else
    in_blocks_of<1>(n, f);
}

struct Largest : Maximum {
  static constexpr double neutral = -INFINITY;
  template <class C>
  TEGULA_FN C result(C total, C) const {
    return total;
  }
};
struct Mean : Plus {
  static constexpr double neutral = 0;
  template <class C>
  TEGULA_FN C result(C total, C count) const {
    return total / count;
  }
};

template <class Op, class T>
TEGULA_CLONES void pool_2x2(Op op, const Pool2dShape& s, const T* x, T* y) {
  using C = Compute<T>;
  const int out_h = s.out_h(), out_w = s.out_w();
  for (int plane = 0; plane < s.planes; ++plane, x += s.x_plane())
    for (int r = 0; r < out_h; ++r, y += out_w) {
      const T *top = x + std::int64_t{2} * r * s.w, *bottom = top + s.w;
      in_blocks(out_w, [=]<int width>(std::integral_constant<int, width>, int begin) TEGULA_INLINE {
        C total[width], both[2 * width];
#pragma omp simd
        for (int l = 0; l < 2 * width; ++l) both[l] = op(C(top[2 * begin + l]), C(bottom[2 * begin + l]));
#pragma omp simd
        for (int l = 0; l < width; ++l) total[l] = op(both[2 * l], both[2 * l + 1]);
#pragma GCC ivdep
#pragma GCC unroll 1
        for (int l = 0; l < width; ++l) y[begin + l] = T(op.result(total[l], C(4)));
      });
    }
}

template <class Op, class T>
TEGULA_CLONES void pool(Op op, const Pool2dShape& s, bool include_pad, const T* x, T* y) {
  using C = Compute<T>;
  constexpr int block = 16;
  const int out_h = s.out_h(), out_w = s.out_w();
  for (int plane = 0; plane < s.planes; ++plane, x += s.x_plane())
    for (int r = 0; r < out_h; ++r, y += out_w)
      for (int begin = 0; begin < out_w; begin += block) {
        C total[block];
        std::fill_n(total, block, C(op.neutral));
        for (int i = 0; i < s.kernel_h; ++i) {
          const int row = r * s.stride_h - s.pad_h + i;
          if (row < 0 || row >= s.h) continue;
          const T* from = x + std::int64_t{row} * s.w;
          for (int j = 0; j < s.kernel_w; ++j) {
#pragma omp simd
            for (int l = 0; l < block; ++l) {
              const int col = (begin + l) * s.stride_w - s.pad_w + j;
              total[l] = op(total[l], unsigned(col) < unsigned(s.w) ? C(from[col]) : C(op.neutral));
            }
          }
        }
        for (int l = 0; l < std::min(block, out_w - begin); ++l)
          y[begin + l] = T(op.result(total[l], C(s.count(include_pad, r, begin + l))));
      }
}

template <class T>
TEGULA_CLONES void max_grad_2x2(const Pool2dShape& s, const T* x, const T* y, const T* dy, T* dx) {
  using C = Compute<T>;
  const int out_h = s.out_h(), out_w = s.out_w();
  for (int plane = 0; plane < s.planes; ++plane, x += s.x_plane(), dx += s.x_plane())
    for (int r = 0; r < out_h; ++r, y += out_w, dy += out_w) {
      const std::int64_t row = std::int64_t{2} * r * s.w;
      const T *top = x + row, *bottom = top + s.w;
      T *to_top = dx + row, *to_bottom = to_top + s.w;
      in_blocks(out_w, [=]<int width>(std::integral_constant<int, width>, int begin) TEGULA_INLINE {
#pragma GCC ivdep
#pragma GCC unroll 1
        for (int l = 0; l < width; ++l) {
          const int col = 2 * (begin + l);
          const C most = C(y[begin + l]), give = C(dy[begin + l]), none = 0;
          auto is_most = [=](T v) TEGULA_INLINE { return int(C(v) == most) | int(C(v) != C(v)); };
          const int a = is_most(top[col]), b = is_most(top[col + 1]) & ~a;
          const int c = is_most(bottom[col]) & ~(a | b), d = is_most(bottom[col + 1]) & ~(a | b | c);
          to_top[col] = T(a != 0 ? give : none);
          to_top[col + 1] = T(b != 0 ? give : none);
          to_bottom[col] = T(c != 0 ? give : none);
          to_bottom[col + 1] = T(d != 0 ? give : none);
        }
      });
    }
}

// What lies under no window: the last row and column of odd images.
template <class T>
void clear_rest_2x2(const Pool2dShape& s, T* dx) {
  for (int plane = 0; plane < s.planes; ++plane, dx += s.x_plane()) {
    if (s.h % 2 != 0) std::fill_n(dx + std::int64_t{s.h - 1} * s.w, s.w, T(0));
    for (int r = 0; s.w % 2 != 0 && r < s.h; ++r) dx[std::int64_t{r} * s.w + s.w - 1] = T(0);
  }
}

template <class T>
TEGULA_CLONES void mean_grad_2x2(const Pool2dShape& s, const T* dy, T* dx) {
  using C = Compute<T>;
  const int out_h = s.out_h(), out_w = s.out_w();
  for (int plane = 0; plane < s.planes; ++plane, dx += s.x_plane())
    for (int r = 0; r < out_h; ++r, dy += out_w) {
      T *to_top = dx + std::int64_t{2} * r * s.w, *to_bottom = to_top + s.w;
      in_blocks(out_w, [=]<int width>(std::integral_constant<int, width>, int begin) TEGULA_INLINE {
#pragma GCC ivdep
#pragma GCC unroll 1
        for (int l = 0; l < width; ++l) {
          const int col = 2 * (begin + l);
          const T share = T(C(dy[begin + l]) / 4);
          to_top[col] = share;
          to_top[col + 1] = share;
          to_bottom[col] = share;
          to_bottom[col + 1] = share;
        }
      });
    }
}

// Calls give(sum, plane, r, c, top, bottom, left, right) for each window, cut at the borders of x; `sum` is a plane of
// dx, or of the f32 sums that become one.
template <class T, class F>
void scatter(const Pool2dShape& s, T* dx, float* work, F give) {
  auto run = [&](auto* sum, int plane) {
    std::fill_n(sum, s.x_plane(), std::remove_pointer_t<decltype(sum)>(0));
    for (int r = 0; r < s.out_h(); ++r)
      for (int c = 0; c < s.out_w(); ++c) {
        const int top = r * s.stride_h - s.pad_h, left = c * s.stride_w - s.pad_w;
        give(sum, plane, r, c, std::max(top, 0), std::min(top + s.kernel_h, s.h), std::max(left, 0),
             std::min(left + s.kernel_w, s.w));
      }
  };
  for (int plane = 0; plane < s.planes; ++plane, dx += s.x_plane()) {
    if (s.scratch_size(dtype_of<T>) == 0) {
      run(dx, plane);
    } else {
      run(work, plane);
      std::transform(work, work + s.x_plane(), dx, [](float v) { return T(v); });
    }
  }
}

}  // namespace

template <class T>
void MaxPool2d::cpu(In<T> x, Out<T> y) const {
  if (is_2x2(*this))
    pool_2x2<Largest, T>({}, *this, x, y);
  else
    pool<Largest, T>({}, *this, true, x, y);
}

template <class T>
void AvgPool2d::cpu(In<T> x, Out<T> y) const {
  if (is_2x2(*this))
    pool_2x2<Mean, T>({}, *this, x, y);
  else
    pool<Mean, T>({}, *this, count_include_pad, x, y);
}

template <class T>
void MaxPool2dGrad::cpu(In<T> x, In<T> y, In<T> dy, Out<T> dx, Scratch<float> work) const {
  using C = Compute<T>;
  if (is_2x2(*this)) {
    max_grad_2x2<T>(*this, x, y, dy, dx);
    return clear_rest_2x2<T>(*this, dx);
  }
  scatter<T>(*this, dx, work,
             [&]<class S>(S* sum, int plane, int r, int c, int top, int bottom, int left, int right) {
               const std::int64_t out = plane * y_plane() + r * out_w() + c;
               const T* from = x + plane * x_plane();
               for (int row = top; row < bottom; ++row)
                 for (std::int64_t i = row * w + left; i < row * w + right; ++i)
                   if (C(from[i]) == C(y[out]) || C(from[i]) != C(from[i])) {
                     sum[i] = S(C(sum[i]) + C(dy[out]));
                     return;
                   }
             });
}

template <class T>
void AvgPool2dGrad::cpu(In<T> dy, Out<T> dx, Scratch<float> work) const {
  using C = Compute<T>;
  if (is_2x2(*this)) {
    mean_grad_2x2<T>(*this, dy, dx);
    return clear_rest_2x2<T>(*this, dx);
  }
  scatter<T>(*this, dx, work,
             [&]<class S>(S* sum, int plane, int r, int c, int top, int bottom, int left, int right) {
               const C share = C(dy[plane * y_plane() + r * out_w() + c]) / C(count(count_include_pad, r, c));
               for (int row = top; row < bottom; ++row)
                 for (std::int64_t i = row * w + left; i < row * w + right; ++i)
                   sum[i] = S(C(sum[i]) + share);
             });
}

const Register<MaxPool2d> registered_max_pool2d;
const Register<MaxPool2dGrad> registered_max_pool2d_grad;
const Register<AvgPool2d> registered_avg_pool2d;
const Register<AvgPool2dGrad> registered_avg_pool2d_grad;

}  // namespace tegula
