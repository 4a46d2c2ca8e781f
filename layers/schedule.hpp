// Learning-rate schedules: pure functions of the step, so that a resumed run needs nothing but its number.
#pragma once

#include <cstdint>
#include <string_view>

namespace tegula::layers {

enum class Decay : std::uint8_t { constant, linear, cosine, stable };
Decay find_decay(std::string_view name);  // throws std::invalid_argument, listing the names

// The rate rises linearly over `warmup` steps to `peak`, and then
//   constant: stays;
//   linear, cosine: falls to `floor` in step `steps` (cosine: Loshchilov and Hutter, SGDR, 2017);
//   stable: stays until the last `cooldown` steps, over which it falls linearly (warm-up-stable-decay: Hu et al., MiniCPM,
//           2024).
struct Schedule {
  Decay decay = Decay::cosine;
  double peak = 1e-3, floor = 0;
  std::int64_t steps = 1, warmup = 0, cooldown = 0;

  double rate(std::int64_t step) const;  // of step 0, 1, ...
};

}  // namespace tegula::layers
