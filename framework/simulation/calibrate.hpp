// What the kernels of real runs took, as StarPU keeps it in its performance models, fitted to the formula of task_seconds().
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "framework/simulation/cluster.hpp"

namespace tegula::simulation {

// Kernels of one size: their mean.
struct Sample {
  double flops, bytes, seconds;
  double count;  // how many there were
};

// The rates with the least squared relative error, where kernels count by the time that they took. None is negative.
Rates fit(std::span<const Sample> samples);

// How far these are from what the rates say, by size: sizes within a tenth of each other are one.
std::vector<Rates::Correction> corrections(std::span<const Sample> samples, const Rates& rates);

// The rates of all ops that ran on CPU workers, from the models that StarPU finds (STARPU_HOME, STARPU_HOSTNAME). Without an op that
// has a model: empty.
std::map<std::string, Rates, std::less<>> measured_rates();

}  // namespace tegula::simulation
