// The order in which a data set is visited. It depends on nothing but seed and epoch, so that all ranks agree on it
// without a message, and a resumed run goes on where it stopped.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/philox.hpp"

namespace tegula::io {

// A uniformly random permutation of 0, ..., count - 1, which are `count` independent random keys, sorted. The index
// settles the improbable tie.
inline std::vector<std::int64_t> shuffled_order(std::int64_t count, std::uint64_t seed, std::uint32_t epoch) {
  std::vector<std::pair<std::uint64_t, std::int64_t>> keyed(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < keyed.size(); ++i)
    keyed[i] = {philox_permutation_key(seed, epoch, i), static_cast<std::int64_t>(i)};
  std::ranges::sort(keyed);
  std::vector<std::int64_t> order(keyed.size());
  std::ranges::transform(keyed, order.begin(), [](const auto& pair) { return pair.second; });
  return order;
}

}  // namespace tegula::io
