#include "kernels/launch.hpp"
#include "kernels/rotary.hpp"

namespace tegula {

template <class T>
__global__ void rotary_kernel(Rotary op, std::int64_t pairs, const T* x, T* y) {
  using C = Compute<T>;
  const int half = op.dim / 2;
  for (std::int64_t i = first_element(); i < pairs; i += grid_elements()) {
    const std::int64_t at = i / half * op.dim + i % half;
    const double angle = op.angle(i / half / op.heads % op.length, static_cast<int>(i % half));
    const C cosine = static_cast<C>(cos(angle)), sine = static_cast<C>(sin(angle));
    const C even = C(x[at]), odd = C(x[at + half]);
    y[at] = T(even * cosine - odd * sine);
    y[at + half] = T(odd * cosine + even * sine);
  }
}

template <class T>
void Rotary::cuda(Stream stream, In<T> x, Out<T> y) const {
  launch(rotary_kernel<T>, stream, size() / 2, *this, size() / 2, x.pointer, y.pointer);
}

const RegisterCuda<Rotary> registered_rotary_cuda;

}  // namespace tegula
