#include "kernels/softmax.hpp"

#include "kernels/simd.hpp"

namespace tegula {

namespace {

template <class C, class T>
TEGULA_CLONES void softmax(std::int64_t rows, std::int64_t cols, const T* x, T* y) {
  for (std::int64_t r = 0; r < rows; ++r, x += cols, y += cols) {
    const C shift = max_of<C>(x, cols);
    if constexpr (std::is_same_v<T, C>) {
#pragma GCC ivdep
      for (std::int64_t c = 0; c < cols; ++c) y[c] = exp_or_zero(x[c] - shift);
      const C scale = 1 / sum_of<C>(y, cols);
#pragma GCC ivdep
      for (std::int64_t c = 0; c < cols; ++c) y[c] *= scale;
    } else {  // y cannot hold the unscaled terms without rounding them: compute them twice
      const C scale = 1 / sum_of_exp<C>(x, cols, shift);
#pragma GCC ivdep
      for (std::int64_t c = 0; c < cols; ++c) y[c] = T(exp_or_zero(C(x[c]) - shift) * scale);
    }
  }
}

template <class C, class T>
TEGULA_CLONES void softmax_grad(std::int64_t rows, std::int64_t cols, const T* y, const T* dy, T* dx) {
  for (std::int64_t r = 0; r < rows; ++r, y += cols, dy += cols, dx += cols) {
    const C dot = fold(
        cols, C(0), C(0), [=](std::int64_t c) TEGULA_INLINE { return C(y[c]) * C(dy[c]); },
        [](C v) TEGULA_INLINE { return v; }, Plus{});
#pragma GCC ivdep
    for (std::int64_t c = 0; c < cols; ++c) dx[c] = T(C(y[c]) * (C(dy[c]) - dot));
  }
}

}  // namespace

template <class T>
void Softmax::cpu(In<T> x, Out<T> y) const {
  softmax<Compute<T>, T>(rows, cols, x, y);
}

template <class T>
void SoftmaxGrad::cpu(In<T> y, In<T> dy, Out<T> dx) const {
  softmax_grad<Compute<T>, T>(rows, cols, y, dy, dx);
}

const Register<Softmax> registered_softmax;
const Register<SoftmaxGrad> registered_softmax_grad;

}  // namespace tegula
