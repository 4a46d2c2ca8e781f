// Conversion between element types; rounded to nearest even.
#pragma once

#include "kernels/op.hpp"

namespace tegula {

// y[i] = x[i], i < n, x of type S
template <class S>
struct Cast {
  static std::string name() { return "cast_" + std::string(name_of(dtype_of<S>)); }
  std::int64_t n;

  std::array<std::int64_t, 2> extents(DType) const { return {n, n}; }
  double flops() const { return 0; }
  double sample(int, double u) const { return std::is_integral_v<S> ? static_cast<int>(256 * u) : 2 * u - 1; }
  static std::vector<Cast> samples() { return {{1}, {77}, {0}, {65536}}; }

  void reference(In<S> x, Out<double> y) const {
    for (std::int64_t i = 0; i < n; ++i) y[i] = static_cast<double>(x[i]);
  }
  template <class T>
  void cpu(In<S> x, Out<T> y) const;
  template <class T>
  void cuda(Stream stream, In<S> x, Out<T> y) const;
};

using CastSources = Types<float, double, bf16, f16, std::int32_t, std::uint8_t>;

// bf16 and f16 are made by way of float: what lies beyond float's digits is rounded twice.
template <class T, class S>
TEGULA_FN T cast_to(S x) {
  return round_to<T>(static_cast<Compute<T>>(x));
}

}  // namespace tegula
