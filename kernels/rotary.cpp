#include "kernels/rotary.hpp"

#include "kernels/simd.hpp"

namespace tegula {

namespace {

constexpr int block = 64;  // pairs whose sines are kept at once

template <class T>
TEGULA_CLONES void rotate(const Rotary& op, const T* x, T* y) {
  using C = Compute<T>;
  const int half = op.dim / 2;
  C cosine[block], sine[block];
  for (std::int64_t i = 0; i < op.length; ++i)
    for (int first = 0; first < half; first += block) {
      const int pairs = std::min(block, half - first);
      for (int j = 0; j < pairs; ++j) {
        const double angle = op.angle(i, first + j);
        cosine[j] = static_cast<C>(std::cos(angle));
        sine[j] = static_cast<C>(std::sin(angle));
      }
      for (std::int64_t b = 0; b < op.batch; ++b)
        for (std::int64_t h = 0; h < op.heads; ++h) {
          const std::int64_t at = ((b * op.length + i) * op.heads + h) * op.dim + first;
#pragma GCC ivdep
          for (int j = 0; j < pairs; ++j) {
            const C even = x[at + j], odd = x[at + j + half];
            y[at + j] = T(even * cosine[j] - odd * sine[j]);
            y[at + j + half] = T(odd * cosine[j] + even * sine[j]);
          }
        }
    }
}

}  // namespace

template <class T>
void Rotary::cpu(In<T> x, Out<T> y) const {
  rotate<T>(*this, x, y);
}

const Register<Rotary> registered_rotary;

}  // namespace tegula
