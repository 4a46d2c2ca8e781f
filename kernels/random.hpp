// What the elements of a tensor start as, and dropout. Random numbers are a function of the element's place
// in the whole tensor (philox.hpp), so they do not depend on how it is cut into tiles or where they are.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>

#include "kernels/dual.hpp"
#include "kernels/op.hpp"
#include "kernels/philox.hpp"
#include "kernels/strided.hpp"

namespace tegula {

// Which elements of a tensor a tile holds: element i of the tile is element first + at.offset(0, i)
// of the tensor.
struct TileInTensor {
  std::int64_t first = 0;
  Strided<1> at;

  TileInTensor() = default;
  // The tile of the given extents whose first element has index `begin`, in a row-major tensor of extents
  // `full`.
  TileInTensor(std::span<const std::int64_t> extents, std::span<const std::int64_t> begin,
               std::span<const std::int64_t> full) {
    std::vector<std::int64_t> stride(full.size(), 1);
    for (std::size_t d = full.size(); d-- > 1;) stride[d - 1] = stride[d] * full[d];
    for (std::size_t d = 0; d < full.size(); ++d) first += begin[d] * stride[d];
    at = Strided<1>(extents, {stride});
  }
  std::int64_t elements() const { return at.elements(); }
  TEGULA_FN std::int64_t element(std::int64_t i) const { return first + at.offset(0, i); }
  static std::vector<TileInTensor> samples();
};

// Attributes of what is random. tensor < 2^32 - 1; step counts from 0 or 1, as the program likes.
struct RandomStream {
  std::uint64_t seed, tensor;
  double step;

  TEGULA_FN std::uint32_t word(std::int64_t element) const {
    return philox_word(seed, static_cast<std::uint32_t>(tensor), static_cast<std::uint32_t>(step), element);
  }
};

template <class C>
TEGULA_FN C uniform_of(std::uint32_t word) {
  return static_cast<C>(word >> 8) * static_cast<C>(0x1p-24);
}

template <class C>
struct NormalPair {
  C even, odd;
};

// The sine is a shifted cosine: compilers make one scalar sincos of both.
template <class C>
TEGULA_FN NormalPair<C> normal_of(std::uint32_t even_word, std::uint32_t odd_word) {
  const C radius = math::sqrt(-2 * math::log(1 - uniform_of<C>(even_word)));
  const C turns = uniform_of<C>(odd_word), two_pi = static_cast<C>(2 * std::numbers::pi);
  return {radius * math::cos(two_pi * turns), radius * math::cos(two_pi * (turns - C(0.25)))};
}

struct Fill {  // y[i] = value;  y is (n)
  static constexpr std::string_view name = "fill";
  double value;
  std::int64_t n;

  std::array<std::int64_t, 1> extents(DType) const { return {n}; }
  double flops() const { return 0; }
  static std::vector<Fill> samples() { return {{1.5, 1}, {0.1, 77}, {1, 0}, {-2, 65536}}; }

  void reference(Out<double> y) const { std::fill_n(y.pointer, n, value); }
  template <class T>
  void cpu(Out<T> y) const;
  template <class T>
  void cuda(Stream stream, Out<T> y) const;
};

struct Uniform {  // y[i] uniform in [low, high), up to rounding
  static constexpr std::string_view name = "uniform";
  static const Scalar scalars[1];
  double low, high;
  RandomStream random;
  TileInTensor tile;

  std::array<std::int64_t, 1> extents(DType) const { return {tile.elements()}; }
  double flops() const { return 20.0 * static_cast<double>(tile.elements()); }
  static std::vector<Uniform> samples();

  template <class C>
  TEGULA_FN C value(C u) const {
    return C(low) + C(high - low) * u;
  }
  void reference(Out<double> y) const;
  template <class T>
  void cpu(Out<T> y) const;
  template <class T>
  void cuda(Stream stream, Out<T> y) const;
};

struct Normal {  // y[i] normally distributed
  static constexpr std::string_view name = "normal";
  static const Scalar scalars[1];
  double mean, stddev;
  RandomStream random;
  TileInTensor tile;

  std::array<std::int64_t, 1> extents(DType) const { return {tile.elements()}; }
  double flops() const { return 40.0 * static_cast<double>(tile.elements()); }
  static std::vector<Normal> samples();

  void reference(Out<double> y) const;
  template <class T>
  void cpu(Out<T> y) const;
  template <class T>
  void cuda(Stream stream, Out<T> y) const;
};

// y[i] = x[i] / (1 - probability) or, with that probability, 0. Its own gradient, with dy for x.
struct Dropout {
  static constexpr std::string_view name = "dropout";
  static const Scalar scalars[1];
  double probability;
  RandomStream random;
  TileInTensor tile;

  std::array<std::int64_t, 2> extents(DType) const { return {tile.elements(), tile.elements()}; }
  double flops() const { return 20.0 * static_cast<double>(tile.elements()); }
  static std::vector<Dropout> samples();

  // What x is multiplied by. u and probability are compared in steps of 2^-24, so that all dtypes drop the
  // same elements.
  template <class C>
  TEGULA_FN C factor(std::uint32_t word) const {
    return word >> 8 >= static_cast<std::uint32_t>(probability * 0x1p24) ? C(1 / (1 - probability)) : C(0);
  }
  void reference(In<double> x, Out<double> y) const;
  template <class T>
  void cpu(In<T> x, Out<T> y) const;
  template <class T>
  void cuda(Stream stream, In<T> x, Out<T> y) const;
};

template <class Op>
inline constexpr Scalar step_of{"step", offsetof(Op, random) + offsetof(RandomStream, step)};
inline constexpr Scalar Uniform::scalars[1] = {step_of<Uniform>};
inline constexpr Scalar Normal::scalars[1] = {step_of<Normal>};
inline constexpr Scalar Dropout::scalars[1] = {step_of<Dropout>};

}  // namespace tegula
