// The pointwise ops themselves, and what all pointwise code shares. Derivatives are in pointwise_slope.cpp,
// which only splits the time of compiling.
#include <algorithm>

#include "kernels/pointwise_cpu.hpp"

namespace tegula {

namespace detail {

template <class To, class From>
TEGULA_CLONES static void convert(const From* from, To* to, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) to[i] = round_to<To>(from[i]);
}

using Extents = std::span<const std::int32_t>;
using Index = std::array<std::int64_t, max_rank>;

static Index index_of(Extents extent, std::int64_t element) {
  Index index{};
  for (std::size_t d = extent.size(); d-- > 0; element /= extent[d]) index[d] = element % extent[d];
  return index;
}

static std::int64_t offset_of(const Index& index, const std::array<std::int32_t, max_rank>& stride) {
  std::int64_t offset = 0;
  for (int d = 0; d < max_rank; ++d) offset += index[d] * stride[d];
  return offset;
}

// What n elements of the output from `begin` on are made from, as a dense array.
template <class T>
static void gather(Extents extent, const std::array<std::int32_t, max_rank>& stride, const T* x,
                   std::int64_t begin, std::int64_t n, Compute<T>* to) {
  using C = Compute<T>;
  const std::size_t inner = extent.size() - 1;
  Index index = index_of(extent, begin);
  while (n > 0) {
    const T* from = x + offset_of(index, stride);
    const std::int64_t run = std::min(n, extent[inner] - index[inner]), step = stride[inner];
    if (step == 1)
      convert(from, to, run);
    else if (step == 0)
      std::fill_n(to, run, C(*from));
    else
      for (std::int64_t i = 0; i < run; ++i) to[i] = from[i * step];
    to += run;
    n -= run;
    index[inner] += run;
    for (std::size_t d = inner; d > 0 && index[d] == extent[d]; --d) {
      index[d] = 0;
      ++index[d - 1];
    }
  }
}

template <class T>
void for_blocks(Extents extent, std::span<const std::array<std::int32_t, max_rank>> stride,
                VectorLoop<Compute<T>> loop, const void* f, const T* const* x, T* y) {
  using C = Compute<T>;
  constexpr int max_arity = 5;
  constexpr std::int64_t buffer_elements = 8 * vector_block;
  alignas(64) C buffer[max_arity + 1][buffer_elements];
  const C* in[max_arity];
  bool dense[max_arity];

  static constexpr std::int32_t one[] = {1};
  if (extent.empty()) extent = one;
  const std::size_t arity = stride.size(), inner = extent.size() - 1;
  std::int64_t elements = 1;
  for (std::size_t k = 0; k < arity; ++k) dense[k] = true;
  for (std::size_t d = extent.size(); d-- > 0; elements *= extent[d])
    for (std::size_t k = 0; k < arity; ++k)
      dense[k] = dense[k] && (stride[k][d] == elements || extent[d] == 1);

  // How many elements of operand k, counted from one of the output, lie in memory as the loop wants them.
  auto ready = [&](std::size_t k, std::int64_t begin) -> std::int64_t {
    if (!std::is_same_v<T, C>) return 0;
    if (dense[k]) return elements - begin;
    return stride[k][inner] == 1 ? extent[inner] - begin % extent[inner] : 0;
  };
  for (std::int64_t begin = 0, n; begin < elements; begin += n) {
    std::int64_t all_ready = std::is_same_v<T, C> ? elements - begin : 0;
    for (std::size_t k = 0; k < arity; ++k) all_ready = std::min(all_ready, ready(k, begin));
    n = all_ready / vector_block * vector_block;
    if (n == 0) n = std::min(elements - begin, buffer_elements);
    const std::int64_t padded = (n + vector_block - 1) / vector_block * vector_block;

    for (std::size_t k = 0; k < arity; ++k) {
      if constexpr (std::is_same_v<T, C>) {
        in[k] = x[k] + (dense[k] ? begin : offset_of(index_of(extent, begin), stride[k]));
        if (ready(k, begin) >= padded) continue;
      }
      gather(extent, stride[k], x[k], begin, n, buffer[k]);
      std::fill(buffer[k] + n, buffer[k] + padded,
                buffer[k][n - 1]);  // some value the function is defined for
      in[k] = buffer[k];
    }
    if constexpr (std::is_same_v<T, C>) {
      if (n == padded) {
        loop(f, in, y + begin, n);
        continue;
      }
    }
    loop(f, in, buffer[max_arity], padded);
    convert(buffer[max_arity], y + begin, n);
  }
}

template void for_blocks<float>(Extents, std::span<const std::array<std::int32_t, max_rank>>,
                                VectorLoop<float>, const void*, const float* const*, float*);
template void for_blocks<double>(Extents, std::span<const std::array<std::int32_t, max_rank>>,
                                 VectorLoop<double>, const void*, const double* const*, double*);
template void for_blocks<bf16>(Extents, std::span<const std::array<std::int32_t, max_rank>>,
                               VectorLoop<float>, const void*, const bf16* const*, bf16*);
template void for_blocks<f16>(Extents, std::span<const std::array<std::int32_t, max_rank>>, VectorLoop<float>,
                              const void*, const f16* const*, f16*);

}  // namespace detail

const bool registered = [] {
  pointwise::for_each_of_order<0>([&]<class F>() { Register<Pointwise<F>>(); });
  return true;
}();

}  // namespace tegula
