#include "kernels/optimizer.hpp"

#include "kernels/simd.hpp"

namespace tegula {

template <class T>
TEGULA_CLONES static void update(Sgd::Rule<Compute<T>> rule, std::int64_t n, T* w, const T* g) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    Compute<T> wi = w[i], none = 0;
    rule(wi, none, g[i]);
    w[i] = round_to<T>(wi);
  }
}

template <class T>
TEGULA_CLONES static void update(Sgd::Rule<Compute<T>> rule, std::int64_t n, T* w, T* m, const T* g) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    Compute<T> wi = w[i], mi = m[i];
    rule(wi, mi, g[i]);
    w[i] = round_to<T>(wi);
    m[i] = round_to<T>(mi);
  }
}

template <class T>
TEGULA_CLONES static void update(Adam::Rule<Compute<T>> rule, std::int64_t n, T* w, T* m, T* v, const T* g,
                                 Compute<T> scale) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    Compute<T> wi = w[i], mi = m[i], vi = v[i];
    rule(wi, mi, vi, Compute<T>(g[i]) * scale);
    w[i] = round_to<T>(wi);
    m[i] = round_to<T>(mi);
    v[i] = round_to<T>(vi);
  }
}

template <class T>
void Sgd::cpu(InOut<T> w, InOut<T> m, In<T> g) const {
  const Rule<Compute<T>> rule(*this);
  if (has(1))
    update<T>(rule, n, w, m, g);
  else
    update<T>(rule, n, w, g);
}

template <class T>
void Adam::cpu(InOut<T> w, InOut<T> m, InOut<T> v, In<T> g, Maybe<T> scale) const {
  const auto factor = has_scale ? Compute<T>(scale[0]) : Compute<T>(1);
  if (factor > 0 || factor < 0) update<T>(Rule<Compute<T>>(*this), n, w, m, v, g, factor);
}

template <class T>
void LossScale::cpu(InOut<T> scale, InOut<T> good, In<T> norm) const {
  for (std::int64_t i = 0; i < n; ++i) (*this)(scale[i], good[i], norm[i]);
}

const Register<Sgd> registered_sgd;
const Register<Adam> registered_adam;
const Register<LossScale> registered_loss_scale;

}  // namespace tegula
