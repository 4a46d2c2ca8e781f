#include "kernels/cast.hpp"
#include "kernels/launch.hpp"

namespace tegula {

template <class S, class T>
__global__ void cast_kernel(std::int64_t n, const S* x, T* y) {
  for (std::int64_t i = first_element(); i < n; i += grid_elements()) y[i] = cast_to<T>(x[i]);
}

template <class S>
template <class T>
void Cast<S>::cuda(Stream stream, In<S> x, Out<T> y) const {
  launch(cast_kernel<S, T>, stream, n, n, x.pointer, y.pointer);
}

const bool registered = [] {
  []<class... S>(Types<S...>) { (RegisterCuda<Cast<S>>(), ...); }(CastSources());
  return true;
}();

}  // namespace tegula
