// Pointwise ops as tasks: any functor of pointwise.hpp over strided operands.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/op.hpp"
#include "kernels/pointwise.hpp"
#include "kernels/strided.hpp"

namespace tegula {

template <std::size_t, class T>
using Each = T;  // T once per index of a pack

// y[i] = f(x[i]...), i runs over the axes of y; x... are as many as F::arity says
template <class F, class = std::make_index_sequence<F::arity>>
struct Pointwise;

template <class F, std::size_t... K>
struct Pointwise<F, std::index_sequence<K...>> {
  static std::string name() { return pointwise::name_of<F>(); }
  static constexpr double ulps =
      pointwise::order<F> == 0 ? 16 : 256;  // 1 - tanh(x)^2 has lost digits, for one
  [[no_unique_address]] F f;
  Strided<F::arity> at;

  std::array<std::int64_t, F::arity + 1> extents(DType) const {
    return {at.operand_elements(K)..., at.elements()};
  }
  double flops() const { return F::flops * static_cast<double>(at.elements()); }
  double sample(int operand, double u) const {
    return operand < F::arity ? pointwise::sample_of(f, operand, u) : 0;
  }

  static std::vector<Pointwise> samples();
  void reference(Each<K, In<double>>... x, Out<double> y) const;
  template <class T>
  void cpu(Each<K, In<T>>... x, Out<T> y) const;  // pointwise_cpu.hpp
  template <class T>
  void cuda(Stream stream, Each<K, In<T>>... x, Out<T> y) const;  // pointwise_cuda.hpp
};

}  // namespace tegula
