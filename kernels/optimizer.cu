#include "kernels/launch.hpp"
#include "kernels/optimizer.hpp"

namespace tegula {

template <class T>
__global__ void sgd_kernel(Sgd::Rule<Compute<T>> rule, std::int64_t n, T* w, T* m, const T* g) {
  for (std::int64_t i = first_element(); i < n; i += grid_elements()) {
    Compute<T> wi = w[i], mi = m ? Compute<T>(m[i]) : Compute<T>(0);
    rule(wi, mi, g[i]);
    w[i] = round_to<T>(wi);
    if (m) m[i] = round_to<T>(mi);
  }
}

template <class T>
__global__ void adam_kernel(Adam::Rule<Compute<T>> rule, std::int64_t n, T* w, T* m, T* v, const T* g,
                            const T* scale) {
  const Compute<T> factor = scale ? Compute<T>(*scale) : Compute<T>(1);
  if (!(factor > 0 || factor < 0)) return;
  for (std::int64_t i = first_element(); i < n; i += grid_elements()) {
    Compute<T> wi = w[i], mi = m[i], vi = v[i];
    rule(wi, mi, vi, Compute<T>(g[i]) * factor);
    w[i] = round_to<T>(wi);
    m[i] = round_to<T>(mi);
    v[i] = round_to<T>(vi);
  }
}

template <class T>
__global__ void loss_scale_kernel(LossScale op, T* scale, T* good, const T* norm) {
  for (std::int64_t i = first_element(); i < op.n; i += grid_elements()) op(scale[i], good[i], norm[i]);
}

template <class T>
void Sgd::cuda(Stream stream, InOut<T> w, InOut<T> m, In<T> g) const {
  launch(sgd_kernel<T>, stream, n, Rule<Compute<T>>(*this), n, w.pointer, has(1) ? m.pointer : nullptr,
         g.pointer);
}

template <class T>
void Adam::cuda(Stream stream, InOut<T> w, InOut<T> m, InOut<T> v, In<T> g, Maybe<T> scale) const {
  launch(adam_kernel<T>, stream, n, Rule<Compute<T>>(*this), n, w.pointer, m.pointer, v.pointer, g.pointer,
         has_scale ? scale.pointer : nullptr);
}

template <class T>
void LossScale::cuda(Stream stream, InOut<T> scale, InOut<T> good, In<T> norm) const {
  launch(loss_scale_kernel<T>, stream, n, *this, scale.pointer, good.pointer, norm.pointer);
}

const RegisterCuda<Sgd> registered_sgd;
const RegisterCuda<Adam> registered_adam;
const RegisterCuda<LossScale> registered_loss_scale;

}  // namespace tegula
