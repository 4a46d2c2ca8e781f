// Layers, losses and optimizers: short classes over the graph API. A layer makes its parameters when constructed and
// emits its ops when called.
#pragma once

#include <string>
#include <vector>

#include "framework/graph/ops.hpp"

namespace tegula::layers {

using Parameters = std::vector<Tensor>;

// y (..., out) = x (..., in...) w + b, w stored (out, in...) as in PyTorch. `in` may be several axes, as behind a
// convolution. Starts as PyTorch's Linear: uniform in +-1 / sqrt(number of inputs).
class Linear {
 public:
  Linear(Graph& graph, const std::string& name, Axes in, Axis out, DType dtype = f32);
  Tensor operator()(const Tensor& x) const;
  Parameters parameters() const { return {weight, bias}; }

  Tensor weight, bias;

 private:
  std::string name_;
  Axes in_;
};

// y (n, out, h', w') = conv2d(x (n, in, h, w)) + b with square kernels; starts as PyTorch's Conv2d.
class Conv2d {
 public:
  Conv2d(Graph& graph, const std::string& name, Axis in, Axis out, int kernel, Window window = {},
         DType dtype = f32);
  Tensor operator()(const Tensor& x) const;
  Parameters parameters() const { return {weight, bias}; }

  Tensor weight, bias;

 private:
  std::string name_;
  Window window_;
};

// Linear layers with ReLU between them. The axes of the hidden layers are named hidden1, hidden2, ...
class Mlp {
 public:
  Mlp(Graph& graph, Axis in, const std::vector<std::int64_t>& hidden, Axis out, DType dtype = f32);
  Tensor operator()(const Tensor& x) const;
  Parameters parameters() const;

 private:
  std::vector<Linear> layers_;
};

// Mean over all rows of -log softmax(logits)[target].
Tensor cross_entropy(const Tensor& logits, const Tensor& target);

// The optimizers add to the graph the update of all `parameters` by the gradient of `loss`. Their moments are states
// named after the parameter, with .momentum, .exp_avg, .exp_avg_sq. Run-time scalar: "learning_rate".
void sgd(Graph& graph, const Tensor& loss, const Parameters& parameters, const SgdOptions& options = {});
void adamw(Graph& graph, const Tensor& loss, const Parameters& parameters, AdamOptions options = {});

}  // namespace tegula::layers
