// Sums, maxima and logsumexps of a tile over any of its dimensions.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/combine.hpp"
#include "kernels/op.hpp"

namespace tegula {

// y = combine(accumulate ? y : neutral, reduction of x over the dimensions d with reduced[d] != 0)
//   sum:          y = [y +] scale sum x             (a mean where scale is 1 / count)
//   max:          y = max([y,] x)                   (NaN where any x is)
//   log_sum_exp:  y = log([exp y +] sum exp x)
// x is (extent[0], ..., extent[rank - 1]), y the dimensions that are not reduced, in order. An empty reduction gives
// the neutral element: 0, -inf, -inf. f32, bf16 and f16 are summed by f32 in blocks and by f64 over the blocks.
struct Reduce {
  static constexpr std::string_view name = "reduce";
  enum class Kind : std::int32_t { sum, max, log_sum_exp };
  Kind kind;
  std::int32_t rank;
  std::array<std::int32_t, 6> extent;
  std::array<std::uint8_t, 6> reduced;
  double scale;
  bool accumulate;

  // Nested loops over some dimensions of x, outermost first; neighbours that can be are joined, extents of 1 dropped.
  struct Loops {
    int count = 0;
    std::int64_t extent[3], stride[3];

    TEGULA_FN std::int64_t size() const {
      std::int64_t product = 1;
      for (int i = 0; i < count; ++i) product *= extent[i];
      return product;
    }
    TEGULA_FN std::int64_t offset(std::int64_t index) const {  // of the index-th iteration
      std::int64_t sum = 0;
      for (int i = count - 1; i >= 0; index /= extent[i--]) sum += index % extent[i] * stride[i];
      return sum;
    }
  };
  Loops loops(bool over_reduced) const {
    Loops inner_first;
    std::int64_t stride = 1;
    bool joins = false;
    for (int d = rank - 1; d >= 0; stride *= extent[d--]) {
      if (extent[d] == 1) continue;
      const bool ours = (reduced[d] != 0) == over_reduced;
      if (ours && joins) inner_first.extent[inner_first.count - 1] *= extent[d];
      if (ours && !joins) {
        inner_first.extent[inner_first.count] = extent[d];
        inner_first.stride[inner_first.count++] = stride;
      }
      joins = ours;
    }
    std::reverse(inner_first.extent, inner_first.extent + inner_first.count);
    std::reverse(inner_first.stride, inner_first.stride + inner_first.count);
    return inner_first;
  }

  // y, of the total over x (of exp(x - shift) for log_sum_exp) and of the y before, -inf where nothing accumulates.
  TEGULA_FN double result(double total, double shift, double before) const {
    if (kind == Kind::sum) return accumulate ? before + scale * total : scale * total;
    if (kind == Kind::max) return Maximum{}(before, total);
    total = shift + math::log(total);
    const double top = finite_or_zero(Maximum{}(before, total));
    return accumulate ? top + math::log(math::exp(before - top) + math::exp(total - top)) : total;
  }

  std::array<std::int64_t, 2> extents(DType) const {
    std::int64_t x = 1, y = 1;
    for (int d = 0; d < rank; ++d) {
      x *= extent[d];
      if (reduced[d] == 0) y *= extent[d];
    }
    return {x, y};
  }
  double flops() const {
    return (kind == Kind::log_sum_exp ? 3.0 : 1.0) * static_cast<double>(extents(f64)[0]);
  }
  bool accumulates() const { return accumulate; }
  static std::vector<Reduce> samples() {
    std::vector<Reduce> all;
    for (Kind kind : {Kind::max, Kind::log_sum_exp, Kind::sum}) {
      const double scale = kind == Kind::sum ? 0.25 : 1;
      all.push_back({kind, 0, {}, {}, scale, false});
      all.push_back({kind, 1, {1}, {1}, scale, true});
      all.push_back({kind, 1, {9001}, {1}, scale, false});
      all.push_back({kind, 2, {4, 0}, {0, 1}, scale, false});
      all.push_back({kind, 2, {5, 6}, {0, 0}, scale, true});
      all.push_back({kind, 2, {33, 70}, {0, 1}, scale, true});
      all.push_back({kind, 2, {150, 300}, {1, 0}, scale, false});
      all.push_back({kind, 3, {5, 6, 49}, {1, 0, 1}, scale, true});
      all.push_back({kind, 6, {2, 3, 4, 1, 5, 3}, {1, 0, 1, 0, 0, 1}, scale, false});
      all.push_back({kind, 6, {3, 2, 4, 3, 2, 5}, {0, 1, 0, 1, 0, 0}, scale, true});
      all.push_back({kind, 2, {256, 512}, {1, 0}, scale, false});
    }
    return all;
  }

  void reference(In<double> x, Acc<double> y) const {
    const Loops kept = loops(false), summed = loops(true);
    for (std::int64_t i = 0; i < kept.size(); ++i) {
      const double* from = x + kept.offset(i);
      double total = 0, top = -INFINITY;
      for (std::int64_t j = 0; j < summed.size(); ++j) top = Maximum{}(top, from[summed.offset(j)]);
      for (std::int64_t j = 0; j < summed.size(); ++j)
        total += kind == Kind::sum ? from[summed.offset(j)] : std::exp(from[summed.offset(j)]);
      if (kind == Kind::sum) y[i] = (accumulate ? y[i] : 0) + scale * total;
      if (kind == Kind::max) y[i] = Maximum{}(accumulate ? y[i] : -INFINITY, top);
      if (kind == Kind::log_sum_exp) y[i] = std::log((accumulate ? std::exp(y[i]) : 0) + total);
    }
  }
  template <class T>
  void cpu(In<T> x, Acc<T> y) const;
  template <class T>
  void cuda(Stream stream, In<T> x, Acc<T> y) const;
};

}  // namespace tegula
