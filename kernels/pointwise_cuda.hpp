// The CUDA body of pointwise ops: the functor of the CPU, one thread per element.
#pragma once

#include "kernels/launch.hpp"
#include "kernels/pointwise_op.hpp"

namespace tegula {

// The functor as an argument of a kernel: nothing if it has no parameters, because nvcc does not accept
// Slope's then.
template <class F>
auto parameters_of(const F& f) {
  if constexpr (std::is_empty_v<F>)
    return nullptr;
  else
    return f;
}

template <class F, class T, std::size_t... K>
__global__ void pointwise_kernel(std::index_sequence<K...>, decltype(parameters_of(F())) parameters,
                                 Strided<F::arity> at, std::uint32_t n, Each<K, const T*>... x, T* y) {
  F f;
  if constexpr (!std::is_empty_v<F>) f = parameters;
  // 32-bit indices (Strided ensures that they do), because dividing 64-bit ones is slow.
  const auto step = static_cast<std::uint32_t>(grid_elements());
  for (auto i = static_cast<std::uint32_t>(first_element()); i < n; i += step) {
    std::int64_t offset[F::arity] = {};
    std::uint32_t rest = i;
    for (int d = static_cast<int>(at.rank) - 1; d >= 0; --d) {
      const std::uint32_t extent = at.extent[d], outer = d > 0 ? rest / extent : 0,
                          index = rest - outer * extent;
      ((offset[K] += std::int64_t{index} * at.stride[K][d]), ...);
      rest = outer;
    }
    y[i] = round_to<T>(f.value(static_cast<Compute<T>>(x[offset[K]])...));
  }
}

template <class F, std::size_t... K>
template <class T>
void Pointwise<F, std::index_sequence<K...>>::cuda(Stream stream, Each<K, In<T>>... x, Out<T> y) const {
  const auto n = static_cast<std::uint32_t>(at.elements());
  launch(pointwise_kernel<F, T, K...>, stream, n, std::index_sequence<K...>(), parameters_of(f), at, n,
         x.pointer..., y.pointer);
}

}  // namespace tegula
