#include "layers/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>
#include <string>

namespace tegula::layers {

Decay find_decay(std::string_view name) {
  if (name == "constant") return Decay::constant;
  if (name == "linear") return Decay::linear;
  if (name == "cosine") return Decay::cosine;
  if (name == "stable") return Decay::stable;
  throw std::invalid_argument("[schedule] \"" + std::string(name) +
                              "\" is none of constant, linear, cosine, stable");
}

double Schedule::rate(std::int64_t step) const {
  if (step < warmup) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
  const std::int64_t begin = decay == Decay::stable ? std::max(warmup, steps - cooldown) : warmup;
  if (decay == Decay::constant || step < begin) return peak;
  const double done = static_cast<double>(std::min(step, steps) - begin) /
                      static_cast<double>(std::max<std::int64_t>(steps - begin, 1));
  const double left = decay == Decay::cosine ? (1 + std::cos(std::numbers::pi * done)) / 2 : 1 - done;
  return floor + (peak - floor) * left;
}

}  // namespace tegula::layers
