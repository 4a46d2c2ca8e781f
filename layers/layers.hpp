// Layers, losses and optimizers: short classes over the graph API. A layer makes its parameters when constructed and
// emits its ops when called.
#pragma once

#include <functional>
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
struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0;
  std::function<bool(const Tensor&)> decays;  // which parameters weight decay is for; none given: all
  double clip = 0;  // largest norm of all gradients together, beyond which they are scaled down; 0: any
  // Dynamic loss scaling, which f16 needs, from this scale on: the states "loss_scale" and "loss_scale.good_steps" are
  // added, and a step whose gradients overflow changes neither parameters nor moments. 0: none.
  double loss_scale = 0;
};
// The norm of all gradients together, where they are clipped or the loss is scaled, and the scale. Scalars.
struct AdamWState {
  Tensor norm, loss_scale;
};
AdamWState adamw(Graph& graph, const Tensor& loss, const Parameters& parameters,
                 const AdamWOptions& options = {});

// sqrt of the sum of the squares of all elements, and min(1, largest / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_
// scales by. Both are scalars, summed in the order of the tensors.
Tensor global_norm(const std::vector<Tensor>& tensors);
Tensor clip_factor(const Tensor& norm, double largest);

}  // namespace tegula::layers
