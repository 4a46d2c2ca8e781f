// The CPU body of pointwise ops. There is one vector loop for a functor and a type to compute in; it works on
// whole blocks, in place where operands are dense and of that type, else on copies in small buffers. So every
// element is computed by vector code, wherever it stands: results do not depend on alignment or tiling.
#pragma once

#include "kernels/pointwise_op.hpp"
#include "kernels/simd.hpp"

namespace tegula {

namespace detail {

inline constexpr int vector_block = 64;  // elements: a multiple of the vector length on any machine

// y[i] = f(x[0][i], x[1][i], ...), i < n, n a multiple of vector_block
template <class C>
using VectorLoop = void (*)(const void* f, const C* const* x, C* y, std::int64_t n);

template <class F, class C, class... X>
TEGULA_CLONES static void vector_loop(const F& functor, C* y, std::int64_t n, X... x) {
  const F f = functor;  // a copy, which stores to y cannot change
  for (std::int64_t i = 0; i < n; i += vector_block) {
#pragma omp simd
    for (int j = 0; j < vector_block; ++j) {
      static_assert(std::is_same_v<decltype(f.value(x[i + j]...)), C>,
                    "a constant of another type changes the precision");
      y[i + j] = f.value(x[i + j]...);
    }
  }
}

// Brings the strided operands and the output to `loop`. No template over functors: it is compiled once per
// type.
template <class T>
void for_blocks(std::span<const std::int32_t> extent,
                std::span<const std::array<std::int32_t, max_rank>> stride, VectorLoop<Compute<T>> loop,
                const void* f, const T* const* x, T* y);

}  // namespace detail

template <class F, std::size_t... K>
template <class T>
void Pointwise<F, std::index_sequence<K...>>::cpu(Each<K, In<T>>... x, Out<T> y) const {
  using C = Compute<T>;
  const T* operands[] = {x...};
  auto loop = [](const void* functor, const C* const* in, C* out, std::int64_t n) {
    detail::vector_loop(*static_cast<const F*>(functor), out, n, in[K]...);
  };
  detail::for_blocks<T>({at.extent.data(), static_cast<std::size_t>(at.rank)}, at.stride, loop, &f, operands,
                        y);
}

template <class F, std::size_t... K>
void Pointwise<F, std::index_sequence<K...>>::reference(Each<K, In<double>>... x, Out<double> y) const {
  for (std::int64_t i = 0; i < at.elements(); ++i) y[i] = f.value(x[at.offset(K, i)]...);
}

// Scalars, nothing, one row, a bias, a column to the left of a matrix, a transposed operand, a bias of
// channels.
template <class F, std::size_t... K>
std::vector<Pointwise<F, std::index_sequence<K...>>> Pointwise<F, std::index_sequence<K...>>::samples() {
  using Strides = std::vector<std::int64_t>;
  F f{};
  if constexpr (requires { F::example(); }) f = F::example();
  // The strides of the first operand, of the last one where there are more, and of those between.
  auto sample = [&](std::vector<std::int64_t> extents, Strides first, Strides last, Strides dense) {
    return Pointwise{f, {extents, {(K == 0 ? first : K + 1 == F::arity ? last : dense)...}}};
  };
  return {sample({}, {}, {}, {}),
          sample({0, 5}, {5, 1}, {0, 1}, {5, 1}),
          sample({1000}, {1}, {1}, {1}),
          sample({100}, {0}, {1}, {0}),
          sample({5, 129}, {129, 1}, {0, 1}, {129, 1}),
          sample({17, 33}, {1, 0}, {33, 1}, {0, 0}),
          sample({7, 3, 5, 4}, {12, 4, 84, 1}, {60, 20, 4, 1}, {60, 20, 4, 1}),
          sample({4, 3, 70}, {210, 70, 1}, {0, 1, 0}, {0, 70, 1}),
          sample({256, 256}, {256, 1}, {256, 1}, {256, 1})};
}

}  // namespace tegula
