// A box of one tile copied into another: halos, which are put together from tiles that overlap a window.
#pragma once

#include <cmath>

#include "kernels/op.hpp"

namespace tegula {

// dst[dst_begin + i] = src[src_begin + i], or += where the mode is add, for i in [0, extent) along five axes; src and dst are
// dense and row-major. With mode fill the rest of dst becomes `value`, else it stays. Fewer axes: leading ones of extent 1.
// The box lies in both; it may be empty.
struct CopyBox {
  static constexpr std::string_view name = "copy_box";
  static constexpr int axes = 5;
  using Index = std::array<std::int32_t, axes>;
  enum class Mode : std::int32_t { fill, keep, add };  // of 32 bits: attributes are compared as bytes

  Index src_extent, dst_extent, src_begin, dst_begin, extent;
  Mode mode;
  float value;

  TEGULA_FN static std::int64_t size(const Index& of) {
    std::int64_t product = 1;
    for (int d = 0; d < axes; ++d) product *= of[d];
    return product;
  }
  // Offset of the index-th element of a box of `extent` at `begin` of a tile.
  TEGULA_FN static std::int64_t offset(const Index& tile, const Index& begin, const Index& extent,
                                       std::int64_t index) {
    std::int64_t sum = 0, stride = 1;
    for (int d = axes - 1; d >= 0; stride *= tile[d], index /= extent[d--])
      sum += (begin[d] + index % extent[d]) * stride;
    return sum;
  }
  // The same copy, in which axes that the box takes whole from src to dst have become one with the axis before.
  CopyBox merged() const {
    CopyBox all = *this;
    for (Index* index : {&all.src_extent, &all.dst_extent, &all.extent}) index->fill(1);
    for (Index* index : {&all.src_begin, &all.dst_begin}) index->fill(0);
    std::int32_t inner = 1;  // elements of the whole axes behind d
    for (int d = axes - 1, to = axes - 1; d >= 0; --d) {
      all.src_extent[to] = src_extent[d] * inner;
      all.dst_extent[to] = dst_extent[d] * inner;
      all.src_begin[to] = src_begin[d] * inner;
      all.dst_begin[to] = dst_begin[d] * inner;
      all.extent[to] = extent[d] * inner;
      const bool whole = src_extent[d] == extent[d] && dst_extent[d] == extent[d];
      inner = whole ? all.extent[to] : 1;
      if (!whole) --to;
    }
    return all;
  }

  std::array<std::int64_t, 2> extents(DType) const { return {size(src_extent), size(dst_extent)}; }
  bool accumulates() const { return mode != Mode::fill; }
  double flops() const { return mode == Mode::add ? static_cast<double>(size(extent)) : 0; }
  static std::vector<CopyBox> samples() {
    using enum Mode;
    std::vector<CopyBox> all;
    for (Mode mode : {fill, keep, add})
      for (float value : {0.0f, -INFINITY}) {
        if (mode != fill && value != 0) continue;
        all.insert(all.end(),
                   {{{1, 1, 1, 1, 1}, {1, 1, 1, 1, 1}, {}, {}, {1, 1, 1, 1, 1}, mode, value},
                    {{1, 1, 2, 3, 5}, {1, 1, 2, 4, 7}, {}, {0, 0, 0, 1, 1}, {1, 1, 2, 3, 5}, mode, value},
                    {{1, 1, 1, 9, 4}, {1, 1, 1, 3, 4}, {0, 0, 0, 6, 0}, {}, {1, 1, 1, 3, 4}, mode, value},
                    {{2, 1, 4, 3, 6},
                     {2, 1, 5, 6, 9},
                     {0, 0, 1, 0, 5},
                     {0, 0, 3, 2, 0},
                     {2, 1, 2, 3, 1},
                     mode,
                     value},
                    {{3, 2, 4, 5, 6}, {3, 2, 4, 5, 6}, {}, {}, {3, 2, 4, 5, 6}, mode, value},
                    {{2, 3, 4, 5, 6},
                     {2, 3, 6, 5, 8},
                     {0, 0, 1, 0, 0},
                     {0, 0, 3, 0, 1},
                     {2, 3, 3, 5, 6},
                     mode,
                     value},
                    {{1, 1, 2, 3, 4}, {1, 1, 2, 2, 4}, {}, {}, {1, 1, 0, 2, 4}, mode, value},
                    {{1, 1, 0, 3, 4}, {1, 1, 2, 2, 4}, {}, {}, {}, mode, value},
                    {{1, 1, 2, 3, 4}, {1, 1, 0, 3, 4}, {}, {}, {}, mode, value}});
      }
    all.push_back(
        {{1, 16, 32, 28, 28}, {1, 16, 32, 30, 30}, {}, {0, 0, 0, 1, 1}, {1, 16, 32, 28, 28}, fill, 0});
    return all;
  }

  void reference(In<double> src, Acc<double> dst) const {
    for (std::int64_t i = 0; mode == Mode::fill && i < size(dst_extent); ++i) dst[i] = value;
    for (std::int64_t i = 0; i < size(extent); ++i) {
      const double x = src[offset(src_extent, src_begin, extent, i)];
      double& y = dst[offset(dst_extent, dst_begin, extent, i)];
      y = mode == Mode::add ? y + x : x;
    }
  }
  template <class T>
  void cpu(In<T> src, Acc<T> dst) const;
  template <class T>
  void cuda(Stream stream, In<T> src, Acc<T> dst) const;
};

}  // namespace tegula
