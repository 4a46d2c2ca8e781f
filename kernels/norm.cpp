#include "kernels/norm.hpp"

#include "kernels/simd.hpp"

namespace tegula {

namespace {

template <class C, class T>
TEGULA_FN NormMoments<C> moments(const NormShape& s, const T* x) {
  const C mean = s.centred ? sum_of<C>(x, s.cols) / static_cast<C>(s.cols) : C(0);
  const C squares = fold(
      s.cols, C(0), mean, [=](std::int64_t c) TEGULA_INLINE { return C(x[c]); },
      [=](C v) TEGULA_INLINE { return (v - mean) * (v - mean); }, Plus{});
  return {mean, 1 / math::sqrt(squares / static_cast<C>(s.cols) + static_cast<C>(s.epsilon))};
}

template <class T>
TEGULA_CLONES void norm(const NormShape& s, const T* x, const T* weight, const T* bias, T* y) {
  using C = Compute<T>;
  for (std::int64_t r = 0; r < s.rows; ++r, x += s.cols, y += s.cols) {
    const auto [mean, scale] = moments<C>(s, x);
    if (bias) {
#pragma GCC ivdep
      for (int c = 0; c < s.cols; ++c) y[c] = T((C(x[c]) - mean) * scale * C(weight[c]) + C(bias[c]));
    } else {
#pragma GCC ivdep
      for (int c = 0; c < s.cols; ++c) y[c] = T((C(x[c]) - mean) * scale * C(weight[c]));
    }
  }
}

template <class T>
TEGULA_CLONES void norm_grad(const NormShape& s, const T* x, const T* weight, const T* dy, T* dx) {
  using C = Compute<T>;
  const C count = static_cast<C>(s.cols);
  for (std::int64_t r = 0; r < s.rows; ++r, x += s.cols, dy += s.cols, dx += s.cols) {
    const auto [mean, scale] = moments<C>(s, x);
    const C along =
        fold(
            s.cols, C(0), C(0),
            [=](std::int64_t c) TEGULA_INLINE { return C(dy[c]) * C(weight[c]) * (C(x[c]) - mean) * scale; },
            [](C v) TEGULA_INLINE { return v; }, Plus{}) /
        count;
    const C sum = s.centred ? fold(
                                  s.cols, C(0), C(0),
                                  [=](std::int64_t c) TEGULA_INLINE { return C(dy[c]) * C(weight[c]); },
                                  [](C v) TEGULA_INLINE { return v; }, Plus{}) /
                                  count
                            : C(0);
#pragma GCC ivdep
    for (int c = 0; c < s.cols; ++c)
      dx[c] = T(scale * (C(dy[c]) * C(weight[c]) - (C(x[c]) - mean) * scale * along - sum));
  }
}

template <class T, class C>
TEGULA_CLONES void norm_weight_grad(const NormShape& s, const T* x, const T* dy, C* dweight) {
  for (std::int64_t r = 0; r < s.rows; ++r, x += s.cols, dy += s.cols) {
    const auto [mean, scale] = moments<C>(s, x);
#pragma GCC ivdep
    for (int c = 0; c < s.cols; ++c) dweight[c] += C(dy[c]) * (C(x[c]) - mean) * scale;
  }
}

}  // namespace

template <class T>
void Norm::cpu(In<T> x, In<T> weight, Maybe<T> bias, Out<T> y) const {
  norm<T>(*this, x, weight, has_bias ? bias.pointer : nullptr, y);
}

template <class T>
void NormGrad::cpu(In<T> x, In<T> weight, In<T> dy, Out<T> dx) const {
  norm_grad<T>(*this, x, weight, dy, dx);
}

template <class T>
void NormWeightGrad::cpu(In<T> x, In<T> dy, Acc<T> dweight, Scratch<float> work) const {
  if constexpr (std::is_same_v<T, Compute<T>>) {
    if (!accumulate) std::fill_n(dweight.pointer, cols, T(0));
    norm_weight_grad<T, T>(*this, x, dy, dweight);
  } else {
    for (int c = 0; c < cols; ++c) work[c] = accumulate ? float(dweight[c]) : 0;
    norm_weight_grad<T, float>(*this, x, dy, work);
    for (int c = 0; c < cols; ++c) dweight[c] = T(work[c]);
  }
}

const Register<Norm> registered_norm;
const Register<NormGrad> registered_norm_grad;
const Register<NormWeightGrad> registered_norm_weight_grad;

}  // namespace tegula
