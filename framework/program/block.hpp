// Copies between a tile and its region of a whole tensor, both dense and row-major.
#pragma once

#include <cstdint>
#include <vector>

#include "framework/program/listing.hpp"

namespace tegula {

inline std::int64_t product(const std::vector<std::int64_t>& extents) {
  std::int64_t all = 1;
  for (std::int64_t extent : extents) all *= extent;
  return all;
}

// Calls visit(offset in the tile, offset in the tensor, length) for each contiguous run.
template <class F>
void for_each_run(const TileRegion& region, const std::vector<std::int64_t>& extents, F&& visit) {
  std::size_t rank = extents.size();
  std::int64_t length = rank == 0 ? 1 : region.extent[rank - 1];
  std::int64_t runs = length == 0 ? 0 : product(region.extent) / length;
  for (std::int64_t run = 0; run < runs; ++run) {
    std::int64_t rest = run, offset = rank == 0 ? 0 : region.begin[rank - 1],
                 stride = rank == 0 ? 1 : extents[rank - 1];
    for (std::size_t i = rank; i-- > 1;) {
      offset += (region.begin[i - 1] + rest % region.extent[i - 1]) * stride;
      rest /= region.extent[i - 1];
      stride *= extents[i - 1];
    }
    visit(run * length, offset, length);
  }
}

template <class From, class To>
void place_block(const From* tile, const TileRegion& region, const std::vector<std::int64_t>& extents,
                 To* tensor) {
  for_each_run(region, extents, [&](std::int64_t in_tile, std::int64_t in_tensor, std::int64_t length) {
    for (std::int64_t i = 0; i < length; ++i) tensor[in_tensor + i] = static_cast<To>(tile[in_tile + i]);
  });
}

template <class From, class To>
void take_block(const From* tensor, const std::vector<std::int64_t>& extents, const TileRegion& region,
                To* tile) {
  for_each_run(region, extents, [&](std::int64_t in_tile, std::int64_t in_tensor, std::int64_t length) {
    for (std::int64_t i = 0; i < length; ++i) tile[in_tile + i] = static_cast<To>(tensor[in_tensor + i]);
  });
}

}  // namespace tegula
