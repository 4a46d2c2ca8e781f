// How the elements of a task's operands are found from those of its output.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/dtype.hpp"

namespace tegula {

inline constexpr int max_rank = 6;  // axes of a task, once those that lie together have become one

// Where the operands of a task lie: element (i0, i1, ...) of the output, which is dense and row-major, is
// made from element sum_d i_d stride[k][d] of operand k. A stride of 0 broadcasts.
template <int arity>
struct Strided {
  std::int64_t rank = 0;  // of 64 bits, so that there is no padding: attributes are compared as bytes
  std::array<std::int32_t, max_rank> extent{};
  std::array<std::array<std::int32_t, max_rank>, arity> stride{};

  Strided() = default;
  // extents and each strides[k] are as long as the output has axes. Throws std::invalid_argument if more than
  // max_rank axes remain after merging, or if a stride or the number of elements reaches 2^31.
  Strided(std::span<const std::int64_t> extents, const std::array<std::vector<std::int64_t>, arity>& strides);

  std::int64_t elements() const {
    std::int64_t n = 1;
    for (int d = 0; d < rank; ++d) n *= extent[d];
    return n;
  }
  std::int64_t operand_elements(int k) const {
    std::int64_t last = 0;
    for (int d = 0; d < rank; ++d) {
      if (stride[k][d] != 0 && extent[d] == 0) return 0;
      last += stride[k][d] * std::int64_t{extent[d] - 1};
    }
    return last + 1;
  }
  // Offset in operand k of what an element of the output is made from.
  TEGULA_FN std::int64_t offset(int k, std::int64_t element) const {
    std::int64_t offset = 0;
    for (int d = static_cast<int>(rank) - 1; d >= 0; element /= extent[d--])
      offset += element % extent[d] * stride[k][d];
    return offset;
  }
};

template <int arity>
Strided<arity>::Strided(std::span<const std::int64_t> extents,
                        const std::array<std::vector<std::int64_t>, arity>& strides) {
  auto narrow = [](std::int64_t n) {
    if (n > std::numeric_limits<std::int32_t>::max())
      throw std::invalid_argument("[strided] an extent, stride or size of " + std::to_string(n) +
                                  ": tiles need to be smaller than 2^31 elements");
    return static_cast<std::int32_t>(n);
  };
  std::int64_t elements = 1;
  for (std::size_t d = 0; d < extents.size(); ++d) {
    narrow(elements *= extents[d]);
    if (extents[d] == 1) continue;
    auto merges = [&](int k) { return stride[k][rank - 1] == strides[k][d] * extents[d]; };
    bool merge = rank > 0;
    for (int k = 0; k < arity; ++k) merge = merge && merges(k);
    if (!merge && rank == max_rank)
      throw std::invalid_argument("[strided] operands have more than 6 axes that do not lie together");
    if (!merge) extent[rank++] = 1;
    extent[rank - 1] = narrow(extent[rank - 1] * extents[d]);
    for (int k = 0; k < arity; ++k) stride[k][rank - 1] = narrow(strides[k][d]);
  }
}

}  // namespace tegula
