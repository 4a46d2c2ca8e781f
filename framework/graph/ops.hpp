// The ops of the graph. Shapes are axes: matmul(x (batch, in), w (in, out)) is (batch, out). Errors are
// std::invalid_argument whose text starts with the op's name.
#pragma once

#include "framework/graph/pointwise.hpp"

namespace tegula {

// Pointwise; any functor of kernels/pointwise.hpp also goes through apply().
inline Tensor operator+(const Tensor& x, const Tensor& y) { return apply(pointwise::Add{}, x, y); }
inline Tensor operator-(const Tensor& x, const Tensor& y) { return apply(pointwise::Subtract{}, x, y); }
inline Tensor operator*(const Tensor& x, const Tensor& y) { return apply(pointwise::Multiply{}, x, y); }
inline Tensor operator/(const Tensor& x, const Tensor& y) { return apply(pointwise::Divide{}, x, y); }
inline Tensor operator-(const Tensor& x) { return apply(pointwise::Negate{}, x); }
inline Tensor operator*(double factor, const Tensor& x) { return apply(pointwise::Scale{factor}, x); }
inline Tensor relu(const Tensor& x) { return apply(pointwise::Relu{}, x); }
inline Tensor gelu(const Tensor& x) { return apply(pointwise::Gelu{}, x); }
inline Tensor silu(const Tensor& x) { return apply(pointwise::Silu{}, x); }
inline Tensor tanh(const Tensor& x) { return apply(pointwise::Tanh{}, x); }
inline Tensor sigmoid(const Tensor& x) { return apply(pointwise::Sigmoid{}, x); }
inline Tensor exp(const Tensor& x) { return apply(pointwise::Exp{}, x); }
inline Tensor log(const Tensor& x) { return apply(pointwise::Log{}, x); }
inline Tensor sqrt(const Tensor& x) { return apply(pointwise::Sqrt{}, x); }

// Sums a * b over the axes that both have and `output` has not; axes in all three are batch axes. Each tensor is, up to
// order of its two matrix parts, (batch..., rows..., columns...), so that one GEMM does one tuple of tiles.
Tensor contract(const Tensor& a, const Tensor& b, const Axes& output);
// x (..., k), w (k, n) -> (..., n): joins the last axis of x with the first of w.
Tensor matmul(const Tensor& x, const Tensor& w);

// Reductions over `axes`; the others stay, in order. Without axes: over all, to a scalar.
Tensor sum(const Tensor& x, const Axes& axes);
Tensor mean(const Tensor& x, const Axes& axes);
Tensor max(const Tensor& x, const Axes& axes);  // the gradient is shared evenly between equal maxima
Tensor log_sum_exp(const Tensor& x, const Axes& axes);
Tensor sum(const Tensor& x);
Tensor mean(const Tensor& x);

Tensor softmax(const Tensor& x);  // over the last axis
// -log softmax(logits)[target] for each row: logits (rows..., classes), target (rows...) i32 -> (rows...).
Tensor softmax_cross_entropy(const Tensor& logits, const Tensor& target);
Tensor one_hot(const Tensor& target, const Axis& classes,
               DType dtype);  // (rows...) i32 -> (rows..., classes)

// Over the last axis: (x - mean x) / sqrt(variance x + epsilon) weight + bias, and x / sqrt(mean x^2 + epsilon) weight.
// weight and bias have that axis alone.
Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double epsilon = 1e-5);
Tensor rms_norm(const Tensor& x, const Tensor& weight, double epsilon = 1e-5);

// Rows of table (rows, columns...) by index (places...) i32 -> (places..., columns...). A kernel throws for an index that
// is none of a row.
Tensor embedding(const Tensor& index, const Tensor& table);

// Rotates the pairs (j, j + dim / 2) of the last axis by the angles position / base^(2 j / dim).
// Positions count from 0 or from the optional run-time scalar "position".
Tensor rotary(const Tensor& x, const Axis& position, double base = 10000);

// kept (batch, length, ...)[:, position] = x (batch, 1, ...), "position" being a run-time scalar. `kept` is a state; ops that
// are made later read what was written.
void write_at(const Tensor& kept, const Tensor& x);

// Scaled dot-product attention: q (batch, queries, heads, groups, dim), or without groups, to k and v (batch, keys, heads,
// dim) -> as q. k and v may have the axis of the queries (self-attention). All query heads of a group share one head of k
// and v. Where causal, query i sees the keys up to i. No score matrix is stored: memory is linear in the sequence.
struct AttentionOptions {
  bool causal = false;
  bool positioned =
      false;  // query i stands at i + the run-time scalar "position": new queries to keys of earlier steps
  double scale = 0;    // 0: 1 / sqrt(dim)
  double dropout = 0;  // of the probabilities
};
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, AttentionOptions options = {});

Tensor cast(const Tensor& x, DType dtype);
Tensor permute(const Tensor& x, const Axes& order);
Tensor broadcast_to(const Tensor& x, const Axes& axes);  // x itself if it has all the axes in this order
Tensor fill(Graph& graph, double value, const Axes& axes, DType dtype);

// Drawn anew every step from (seed, tensor, step, global element index): the same on any tiling and placement.
Tensor random_uniform(Graph& graph, double low, double high, const Axes& axes, DType dtype);
Tensor random_normal(Graph& graph, double mean, double stddev, const Axes& axes, DType dtype);
Tensor dropout(const Tensor& x, double probability);

// x (n, c_in, h, w), weight (c_out, c_in, kernel_h, kernel_w) -> (n, c_out, out_h, out_w); cross-correlation with
// zero padding, out = (in + 2 padding - kernel) / stride + 1.
struct Window {
  int stride = 1, padding = 0;
};
Tensor conv2d(const Tensor& x, const Tensor& weight, Window window = {});
// x (n, c_in, d, h, w), weight (c_out, c_in, kernel_d, kernel_h, kernel_w) -> (n, c_out, out_d, out_h, out_w), likewise.
Tensor conv3d(const Tensor& x, const Tensor& weight, Window window = {});
// x (n, c, h, w) -> (n, c, out_h, out_w).
Tensor max_pool2d(const Tensor& x, int kernel, Window window);
Tensor avg_pool2d(const Tensor& x, int kernel, Window window);  // padding counts as zeros

// Optimizer steps on one parameter; moments are states like w. Run-time scalars: "learning_rate", "step" (from 1).
struct SgdOptions {
  double momentum = 0, weight_decay = 0;
  bool nesterov = false;
};
struct AdamOptions {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0;
  bool decoupled = true;  // weight decay apart from the gradient: AdamW
};
void sgd(const Tensor& w, const Tensor& momentum, const Tensor& gradient, const SgdOptions& options);
// The gradient is multiplied by the scalar `scale`, if there is one: see clip_factor. No step is made where it is 0 or NaN.
void adam(const Tensor& w, const Tensor& m, const Tensor& v, const Tensor& gradient,
          const AdamOptions& options, const Tensor& scale = {});
// Dynamic loss scaling: halves the state `scale` where `norm`, of the gradients of loss x scale, is not finite, and doubles it
// after so many steps in a row where it was, which the state `good` counts. All three have the same axes, usually none.
struct LossScaleOptions {
  double growth = 2, backoff = 0.5;
  std::int64_t interval = 2000;
};
void update_loss_scale(const Tensor& scale, const Tensor& good, const Tensor& norm,
                       const LossScaleOptions& options = {});

}  // namespace tegula
