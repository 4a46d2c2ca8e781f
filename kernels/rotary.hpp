// Rotary position embedding: Su et al., RoFormer, 2021, in the pairing of Llama's published weights.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

#include "kernels/dual.hpp"
#include "kernels/op.hpp"

namespace tegula {

// Rotates the pairs (x[j], x[j + dim / 2]) of each head by the angle position / base^(2 j / dim), backwards where
// inverse; x and y are (batch, length, heads, dim), the tile's first position is `begin`. The gradient is the inverse.
struct Rotary {
  static constexpr std::string_view name = "rotary";
  static constexpr double ulps = 1024;  // the angle is known to its own rounding: some hundred radians
  std::int32_t batch, length, heads, dim, begin, inverse;
  double base;
  double position = 0;  // added to begin
  static const Scalar scalars[1];

  std::int64_t size() const { return std::int64_t{batch} * length * heads * dim; }
  std::array<std::int64_t, 2> extents(DType) const { return {size(), size()}; }
  double flops() const { return 3.0 * static_cast<double>(size()); }
  static std::vector<Rotary> samples() {
    return {{1, 1, 1, 2, 0, 0, 10000},
            {2, 5, 3, 6, 4, 1, 10000},
            {1, 0, 2, 4, 0, 0, 10000},
            {3, 7, 1, 34, 100, 0, 500, 9},
            {2, 128, 4, 64, 0, 0, 10000}};
  }
  // Of position `begin + i` and pair j.
  TEGULA_FN double angle(std::int64_t i, int j) const {
    const double turned =
        (begin + static_cast<double>(i) + position) * math::exp(-2.0 * j / dim * math::log(base));
    return inverse ? -turned : turned;
  }

  void reference(In<double> x, Out<double> y) const {
    for (std::int64_t at = 0; at < size(); ++at) {
      const int d = static_cast<int>(at % dim), j = d % (dim / 2);
      const double a = angle(at / dim / heads % length, j);
      y[at] = d < dim / 2 ? x[at] * std::cos(a) - x[at + dim / 2] * std::sin(a)
                          : x[at] * std::cos(a) + x[at - dim / 2] * std::sin(a);
    }
  }
  template <class T>
  void cpu(In<T> x, Out<T> y) const;
  template <class T>
  void cuda(Stream stream, In<T> x, Out<T> y) const;
};

inline constexpr Scalar Rotary::scalars[1] = {{"position", offsetof(Rotary, position), /*optional=*/true}};

}  // namespace tegula
