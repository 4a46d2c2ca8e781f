// Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): a random function
// of a counter and a key, so that a random number depends on what it is for, and not on who asks for it or
// when. No state is kept.
//
// Here the question is (seed, stream, step, element):
//   key     = seed: low, high 32 bits
//   counter = element / 4: low, high 32 bits; stream, the number of a tensor; step
// and the element gets word element % 4 of the answer. Nothing is mixed or hashed: other questions have other
// counters or keys. From a word w, all dtypes alike:
//   uniform  u = (w >> 8) 2^-24, in [0, 1)
//   normal   elements 2p and 2p + 1 are r cos(2 pi t) and r cos(2 pi (t - 1/4)) = r sin(2 pi t), where
//            r = sqrt(-2 log(1 - u[2p])) and t = u[2p + 1] (Box and Muller 1958)
#pragma once

#include <cstdint>

#include "kernels/dtype.hpp"

namespace tegula {

struct PhiloxWords {
  std::uint32_t w0, w1, w2, w3;
};

TEGULA_FN PhiloxWords philox(PhiloxWords counter, std::uint64_t seed) {
  auto [c0, c1, c2, c3] = counter;
  auto k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    std::uint64_t a = 0xD2511F53ull * c0, b = 0xCD9E8D57ull * c2;
    c0 = static_cast<std::uint32_t>(b >> 32) ^ c1 ^ k0;
    c2 = static_cast<std::uint32_t>(a >> 32) ^ c3 ^ k1;
    c1 = static_cast<std::uint32_t>(b);
    c3 = static_cast<std::uint32_t>(a);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {c0, c1, c2, c3};
}

// The words of elements 4 block, ..., 4 block + 3.
TEGULA_FN PhiloxWords philox(std::uint64_t seed, std::uint32_t stream, std::uint32_t step,
                             std::uint64_t block) {
  return philox({static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), stream, step},
                seed);
}

TEGULA_FN std::uint32_t philox_word(std::uint64_t seed, std::uint32_t stream, std::uint32_t step,
                                    std::uint64_t element) {
  PhiloxWords words = philox(seed, stream, step, element / 4);
  std::uint32_t low = element & 1 ? words.w1 : words.w0, high = element & 1 ? words.w3 : words.w2;
  return element & 2 ? high : low;
}

// Sorting the samples 0, 1, ... of a data set by this key shuffles them, differently in each epoch. The
// stream is one that no tensor has.
inline std::uint64_t philox_permutation_key(std::uint64_t seed, std::uint32_t epoch, std::uint64_t sample) {
  PhiloxWords words = philox(seed, 0xffffffffu, epoch, sample);
  return std::uint64_t{words.w1} << 32 | words.w0;
}

}  // namespace tegula
