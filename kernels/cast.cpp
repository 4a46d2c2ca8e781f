#include "kernels/cast.hpp"

#include "kernels/simd.hpp"

namespace tegula {

template <class S, class T>
TEGULA_CLONES static void convert(const S* x, T* y, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) y[i] = cast_to<T>(x[i]);
}

template <class S>
template <class T>
void Cast<S>::cpu(In<S> x, Out<T> y) const {
  convert<S, T>(x, y, n);
}

const bool registered = [] {
  []<class... S>(Types<S...>) { (Register<Cast<S>>(), ...); }(CastSources{});
  return true;
}();

}  // namespace tegula
