#include "framework/simulation/calibrate.hpp"

#include <starpu.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

namespace tegula::simulation {

namespace {

constexpr int terms = 3;  // a constant, flops, bytes
using Vector = std::array<double, terms>;

// The solution of the normal equations in the terms that `mask` has; others are 0. False where there is none.
bool solve(const std::array<Vector, terms>& matrix, const Vector& right, unsigned mask, Vector& x) {
  std::array<Vector, terms> m = matrix;
  Vector b = right;
  for (int i = 0; i < terms; ++i)
    if (!(mask >> i & 1)) {
      for (int j = 0; j < terms; ++j) m[i][j] = m[j][i] = 0;
      m[i][i] = 1;
      b[i] = 0;
    }
  for (int i = 0; i < terms; ++i) {  // the matrix is positive definite, unless it is singular
    if (m[i][i] < 1e-9) return false;
    for (int row = i + 1; row < terms; ++row) {
      const double factor = m[row][i] / m[i][i];
      for (int j = i; j < terms; ++j) m[row][j] -= factor * m[i][j];
      b[row] -= factor * b[i];
    }
  }
  for (int i = terms; i-- > 0;) {
    x[i] = b[i];
    for (int j = i + 1; j < terms; ++j) x[i] -= m[i][j] * x[j];
    x[i] /= m[i][i];
  }
  return true;
}

}  // namespace

Rates fit(std::span<const Sample> samples) {
  // Each term in units of its largest value, so that what is singular shows.
  Vector unit{1, 0, 0};
  double all = 0;
  for (const Sample& s : samples) {
    unit[1] = std::max(unit[1], s.flops);
    unit[2] = std::max(unit[2], s.bytes);
    all += s.count * s.seconds;
  }
  auto term = [&](const Sample& s, int i) {
    return (i == 0 ? 1 : i == 1 ? s.flops : s.bytes) / (unit[i] > 0 ? unit[i] : 1) / s.seconds;
  };
  std::array<Vector, terms> matrix{};
  Vector right{};
  for (const Sample& s : samples)
    for (int i = 0; i < terms; ++i) {
      const double weight = s.count * s.seconds / all;
      right[i] += weight * term(s, i);
      for (int j = 0; j < terms; ++j) matrix[i][j] += weight * term(s, i) * term(s, j);
    }
  Vector best{};
  double least = std::numeric_limits<double>::infinity();
  for (unsigned mask = 1; mask < 1U << terms; ++mask) {
    Vector x;
    if (!solve(matrix, right, mask, x) || std::ranges::any_of(x, [](double v) { return !(v >= 0); }))
      continue;
    double error = 0;
    for (const Sample& s : samples) {
      double relative = -1;
      for (int i = 0; i < terms; ++i) relative += x[i] * term(s, i);
      error += s.count * s.seconds / all * relative * relative;
    }
    if (error < least - 1e-12) {
      least = error;
      best = x;
    }
  }
  auto rate = [&](int i) {
    return best[i] > 0 && unit[i] > 0 ? unit[i] / best[i] : std::numeric_limits<double>::infinity();
  };
  return {best[0], rate(1), rate(2)};
}

std::vector<Rates::Correction> corrections(std::span<const Sample> samples, const Rates& rates) {
  constexpr double alike = 1.1;
  struct Group {
    Sample first;
    double measured, formula;
  };
  std::vector<Group> groups;
  auto near = [](double a, double b) { return a + 1 < alike * (b + 1) && b + 1 < alike * (a + 1); };
  for (const Sample& s : samples) {
    auto group = std::ranges::find_if(
        groups, [&](const Group& g) { return near(g.first.flops, s.flops) && near(g.first.bytes, s.bytes); });
    if (group == groups.end()) group = groups.insert(groups.end(), {s, 0, 0});
    group->measured += s.count * s.seconds;
    group->formula += s.count * rates.seconds(s.flops, s.bytes);
  }
  std::vector<Rates::Correction> found;
  for (const Group& g : groups) found.push_back({g.first.flops, g.first.bytes, g.measured / g.formula});
  return found;
}

std::map<std::string, Rates, std::less<>> measured_rates() {
  starpu_perfmodel_initialize();
  std::map<std::string, Rates, std::less<>> all;
  for (const OpInfo* op : registry())
    for (const DType dtype : op->dtypes) {
      const std::string name(name_of(dtype)), symbol = "tegula_" + op->name + "_" + name;
      starpu_perfmodel model{};
      if (starpu_perfmodel_load_symbol(symbol.c_str(), &model) != 0) continue;
      std::vector<Sample> samples;
      if (const starpu_perfmodel_per_arch* cpu =
              starpu_perfmodel_get_model_per_devices(&model, 0, STARPU_CPU_WORKER, 0, 1, -1))
        for (const starpu_perfmodel_history_list* at = cpu->list; at; at = at->next)
          if (at->entry->nsample > 0 && at->entry->mean > 0)
            samples.push_back({at->entry->flops, static_cast<double>(at->entry->size), at->entry->mean * 1e-6,
                               static_cast<double>(at->entry->nsample)});
      if (!samples.empty()) {
        Rates& rates = all[op->name + " " + name] = fit(samples);
        rates.corrections = corrections(samples, rates);
      }
      starpu_perfmodel_unload_model(&model);
    }
  return all;
}

}  // namespace tegula::simulation
