// The optimizers against PyTorch's definitions, written down from the documentation of torch.optim, over some
// steps.
#include "kernels/optimizer.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <optional>
#include <vector>

using namespace tegula;

namespace {

double gradient(double w, int step) { return 2 * w - 0.3 * step; }

double torch_sgd(const Sgd& o, int steps) {
  double w = 0.7;
  std::optional<double> b;
  for (int t = 1; t <= steps; ++t) {
    double g = gradient(w, t) + o.weight_decay * w;
    if (o.momentum != 0) {
      b = b ? o.momentum * *b + (1 - o.dampening) * g : g;
      g = o.nesterov ? g + o.momentum * *b : *b;
    }
    w -= o.learning_rate * g;
  }
  return w;
}

double torch_adam(const Adam& o, int steps) {
  double w = 0.7, m = 0, v = 0;
  for (int t = 1; t <= steps; ++t) {
    double g = gradient(w, t);
    if (o.decoupled)
      w -= o.learning_rate * o.weight_decay * w;
    else
      g += o.weight_decay * w;
    m = o.beta1 * m + (1 - o.beta1) * g;
    v = o.beta2 * v + (1 - o.beta2) * g * g;
    w -= o.learning_rate * (m / (1 - std::pow(o.beta1, t))) /
         (std::sqrt(v / (1 - std::pow(o.beta2, t))) + o.epsilon);
  }
  return w;
}

template <class Op>
double ours(Op op, int steps) {
  double w = 0.7, m = 0, v = 0;
  for (int t = 1; t <= steps; ++t) {
    double g = gradient(w, t);
    op.step = t;
    if constexpr (std::is_same_v<Op, Sgd>) {
      void* tiles[] = {&w, op.has(1) ? &m : nullptr, &g};
      op_info<Op>().cpu(&op, tiles, f64);
    } else {
      void* tiles[] = {&w, &m, &v, &g, nullptr};
      op_info<Op>().cpu(&op, tiles, f64);
    }
  }
  return w;
}

}  // namespace

TEST_SUITE("kernels") {
  TEST_CASE("SGD is PyTorch's, with buffers that start as zeros") {
    for (double momentum : {0.0, 0.9})
      for (double dampening : {0.0, 0.4})
        for (double weight_decay : {0.0, 0.1})
          for (int nesterov : {0, 1}) {
            if (nesterov && (momentum == 0 || dampening != 0)) continue;
            const Sgd op{1, momentum, dampening, weight_decay, nesterov, 0.05, 1};
            CHECK(ours(op, 5) == doctest::Approx(torch_sgd(op, 5)).epsilon(1e-12));
          }
  }

  TEST_CASE("Adam and AdamW are PyTorch's") {
    for (double weight_decay : {0.0, 0.1})
      for (int decoupled : {0, 1}) {
        const Adam op{1, 0.8, 0.99, 1e-8, weight_decay, decoupled, 0.05, 1};
        CHECK(ours(op, 5) == doctest::Approx(torch_adam(op, 5)).epsilon(1e-12));
      }
  }

  TEST_CASE("Adam leaves everything as it is where the scale is 0 or NaN, whatever the gradient") {
    Adam op{1, 0.8, 0.99, 1e-8, 0.1, 1, 0.05, 1, 1};
    for (double scale : {0.0, std::nan("")}) {
      double w = 0.7, m = 0.1, v = 0.2, g = INFINITY;
      void* tiles[] = {&w, &m, &v, &g, &scale};
      op_info<Adam>().cpu(&op, tiles, f64);
      CHECK(w == 0.7);
      CHECK(m == 0.1);
      CHECK(v == 0.2);
    }
  }

  TEST_CASE("the loss scale falls at once, not below 1, and grows after so many good steps in a row") {
    const LossScale op{.n = 1, .growth = 2, .backoff = 0.25, .interval = 3};
    double scale = 8, good = 0;
    std::vector<double> scales;
    for (double norm : {1.0, 2.0, HUGE_VAL, 1.0, 1.0, 1.0, 1.0, std::nan(""), HUGE_VAL}) {
      void* tiles[] = {&scale, &good, &norm};
      op_info<LossScale>().cpu(&op, tiles, f64);
      scales.push_back(scale);
    }
    CHECK(scales == std::vector<double>{8, 8, 2, 2, 2, 4, 4, 1, 1});
  }
}
