// One step of an optimizer on a tile of a parameter w with gradient g, as torch.optim defines SGD, Adam and
// AdamW. What they remember of earlier steps starts as zeros. "step" counts the updates from 1.
#pragma once

#include <cmath>
#include <cstddef>

#include "kernels/dual.hpp"
#include "kernels/op.hpp"

namespace tegula {

// Of n elements each:
//   d = g + weight_decay w
//   m = momentum m + (1 - dampening) d, in the first step d       m is absent if momentum is 0
//   w = w - learning_rate (nesterov ? d + momentum m : m)
struct Sgd {
  static constexpr std::string_view name = "sgd";
  static const Scalar scalars[2];
  std::int64_t n;
  double momentum = 0, dampening = 0, weight_decay = 0;
  std::int64_t nesterov = 0;  // 0 or 1; of 64 bits, so that there is no padding
  double learning_rate = 0, step = 1;

  bool has(int operand) const { return operand != 1 || momentum != 0; }
  std::array<std::int64_t, 3> extents(DType) const { return {n, has(1) ? n : 0, n}; }
  double flops() const { return 8.0 * static_cast<double>(n); }
  static std::vector<Sgd> samples() {
    return {{1, 0, 0, 0, 0, 0.1, 1},         {129, 0, 0, 0.01, 0, 0.1, 2},    {77, 0.9, 0.5, 0, 0, 0.1, 1},
            {77, 0.9, 0.5, 0.01, 0, 0.1, 5}, {1000, 0.9, 0, 0.01, 1, 0.1, 5}, {0, 0.9, 0, 0, 0, 0.1, 5},
            {65536, 0.9, 0, 0.01, 0, 0.1, 5}};
  }

  template <class C>
  struct Rule {  // the update of one element
    C decay, keep, add, of_d, of_m;
    explicit Rule(const Sgd& op)
        : decay(static_cast<C>(op.weight_decay)),
          keep(static_cast<C>(op.step == 1 ? 0 : op.momentum)),
          add(static_cast<C>(op.step == 1 || op.momentum == 0 ? 1 : 1 - op.dampening)),
          of_d(static_cast<C>(op.nesterov ? op.learning_rate : 0)),
          of_m(static_cast<C>(op.nesterov ? op.learning_rate * op.momentum : op.learning_rate)) {}
    TEGULA_FN void operator()(C& w, C& m, C g) const {
      const C d = g + decay * w;
      m = keep * m + add * d;
      w -= of_d * d + of_m * m;
    }
  };

  void reference(InOut<double> w, InOut<double> m, In<double> g) const {
    const Rule<double> rule(*this);
    double none = 0;
    for (std::int64_t i = 0; i < n; ++i) rule(w[i], has(1) ? m[i] : none, g[i]);
  }
  template <class T>
  void cpu(InOut<T> w, InOut<T> m, In<T> g) const;
  template <class T>
  void cuda(Stream stream, InOut<T> w, InOut<T> m, In<T> g) const;
};

// Of n elements each, t being the step (Kingma and Ba 2015; decoupled: Loshchilov and Hutter 2019, AdamW). g is multiplied
// by `scale` first, a single number, where there is one; one that is 0 or NaN leaves w, m and v as they are:
//   decoupled:  w = (1 - learning_rate weight_decay) w        otherwise:  g = g + weight_decay w
//   m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2
//   w = w - learning_rate m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon)
struct Adam {
  static constexpr std::string_view name = "adam";
  static const Scalar scalars[2];
  std::int64_t n;
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0;
  std::int64_t decoupled = 0;  // 0 or 1
  double learning_rate = 0, step = 1;
  std::int64_t has_scale = 0;  // 0 or 1

  bool has(int operand) const { return operand != 4 || has_scale; }
  std::array<std::int64_t, 5> extents(DType) const { return {n, n, n, n, has_scale ? 1 : 0}; }
  double flops() const { return 20.0 * static_cast<double>(n); }
  double sample(int operand, double u) const { return operand == 2 ? u : 2 * u - 1; }
  static std::vector<Adam> samples() {
    return {{1, 0.9, 0.999, 1e-8, 0, 0, 0.1, 1},       {129, 0.9, 0.999, 1e-8, 0.1, 0, 0.1, 5},
            {1000, 0.9, 0.99, 1e-6, 0.1, 1, 0.1, 2},   {0, 0.9, 0.999, 1e-8, 0.1, 1, 0.1, 1},
            {77, 0.9, 0.999, 1e-8, 0.1, 0, 0.1, 3, 1}, {65536, 0.9, 0.999, 1e-8, 0.1, 1, 0.1, 7}};
  }

  template <class C>
  struct Rule {
    C shrink, decay, beta2, rest1, rest2, scale, rate, eps;
    explicit Rule(const Adam& op)
        : shrink(static_cast<C>(op.decoupled ? 1 - op.learning_rate * op.weight_decay : 1)),
          decay(static_cast<C>(op.decoupled ? 0 : op.weight_decay)),
          beta2(static_cast<C>(op.beta2)),
          rest1(static_cast<C>(1 - op.beta1)),
          rest2(static_cast<C>(1 - op.beta2)),
          scale(static_cast<C>(1 / std::sqrt(1 - std::pow(op.beta2, op.step)))),
          rate(static_cast<C>(op.learning_rate / (1 - std::pow(op.beta1, op.step)))),
          eps(static_cast<C>(op.epsilon)) {}
    TEGULA_FN void operator()(C& w, C& m, C& v, C g) const {
      w *= shrink;
      g += decay * w;
      m += rest1 * (g - m);
      v = beta2 * v + rest2 * g * g;
      w -= rate * m / (math::sqrt(v) * scale + eps);
    }
  };

  void reference(InOut<double> w, InOut<double> m, InOut<double> v, In<double> g, Maybe<double> scale) const {
    const Rule<double> rule(*this);
    if (has_scale && !(scale[0] > 0 || scale[0] < 0)) return;
    for (std::int64_t i = 0; i < n; ++i) rule(w[i], m[i], v[i], has_scale ? g[i] * scale[0] : g[i]);
  }
  template <class T>
  void cpu(InOut<T> w, InOut<T> m, InOut<T> v, In<T> g, Maybe<T> scale) const;
  template <class T>
  void cuda(Stream stream, InOut<T> w, InOut<T> m, InOut<T> v, In<T> g, Maybe<T> scale) const;
};

// Dynamic loss scaling (Micikevicius et al. 2018) of n losses: where the norm of a loss's scaled gradients is finite, it
// counts as a good step, and after `interval` of those the scale grows; where not, the scale falls, not below 1.
struct LossScale {
  static constexpr std::string_view name = "loss_scale";
  using dtypes = Types<float, double>;  // narrower ones could not count the steps
  std::int64_t n;
  double growth = 2, backoff = 0.5;
  std::int64_t interval = 2000;

  std::array<std::int64_t, 3> extents(DType) const { return {n, n, n}; }
  double flops() const { return 4.0 * static_cast<double>(n); }
  double sample(int operand, double u) const {
    if (operand == 2) return u < 0.3 ? INFINITY : u < 0.4 ? NAN : u;
    return operand == 0 ? std::exp2(std::floor(24 * u)) : std::floor(u * static_cast<double>(interval));
  }
  static std::vector<LossScale> samples() { return {{1}, {0}, {77, 2, 0.5, 3}, {1000, 4, 0.25, 1}}; }

  template <class C>
  TEGULA_FN void operator()(C& scale, C& good, C norm) const {
    const bool finite = norm - norm == 0, grows = finite && good + 1 >= static_cast<C>(interval);
    const C smaller = scale * static_cast<C>(backoff);
    scale = grows ? scale * static_cast<C>(growth) : finite ? scale : smaller < 1 ? C(1) : smaller;
    good = finite && !grows ? good + 1 : C(0);
  }

  void reference(InOut<double> scale, InOut<double> good, In<double> norm) const {
    for (std::int64_t i = 0; i < n; ++i) (*this)(scale[i], good[i], norm[i]);
  }
  template <class T>
  void cpu(InOut<T> scale, InOut<T> good, In<T> norm) const;
  template <class T>
  void cuda(Stream stream, InOut<T> scale, InOut<T> good, In<T> norm) const;
};

inline constexpr Scalar Sgd::scalars[2] = {{"learning_rate", offsetof(Sgd, learning_rate)},
                                           {"step", offsetof(Sgd, step)}};
inline constexpr Scalar Adam::scalars[2] = {{"learning_rate", offsetof(Adam, learning_rate)},
                                            {"step", offsetof(Adam, step)}};

}  // namespace tegula
