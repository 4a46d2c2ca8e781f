#include "layers/layers.hpp"

#include <cmath>
#include <stdexcept>

namespace tegula::layers {

namespace {

Initializer pytorch_default(double fan_in) {
  double bound = 1 / std::sqrt(fan_in);
  return Initializer::uniform(-bound, bound);
}

std::vector<Tensor> full_gradients(const Tensor& loss, const Parameters& parameters) {
  std::vector<Tensor> all = gradients(loss, parameters);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!all[i])
      throw std::invalid_argument("[optimizer] the loss does not depend on " + parameters[i].describe());
    all[i] = broadcast_to(all[i], parameters[i].axes());
  }
  return all;
}

Tensor moment(Graph& graph, const Tensor& w, const char* name) {
  return graph.state(w.name() + name, w.dtype(), w.axes(), Initializer::fill(0));
}

}  // namespace

Linear::Linear(Graph& graph, const std::string& name, Axes in, Axis out, DType dtype)
    : name_(name), in_(std::move(in)) {
  double fan_in = 1;
  for (const Axis& axis : in_) fan_in *= static_cast<double>(axis.extent());
  Axes axes{out};
  axes.insert(axes.end(), in_.begin(), in_.end());
  weight = graph.state(name + ".weight", dtype, axes, pytorch_default(fan_in));
  bias = graph.state(name + ".bias", dtype, {out}, pytorch_default(fan_in));
}

Tensor Linear::operator()(const Tensor& x) const {
  Graph::Scope scope(x.graph(), name_);
  if (x.axes().size() < in_.size() || !std::equal(in_.rbegin(), in_.rend(), x.axes().rbegin()))
    throw std::invalid_argument("[" + name_ + "] the last axes of " + x.describe() +
                                " are not those of the weight " + weight.describe());
  Axes output(x.axes().begin(), x.axes().end() - static_cast<std::ptrdiff_t>(in_.size()));
  output.push_back(bias.axes()[0]);
  return contract(x, weight, output) + bias;
}

Conv2d::Conv2d(Graph& graph, const std::string& name, Axis in, Axis out, int kernel, Window window,
               DType dtype)
    : name_(name), window_(window) {
  Axis h = graph.axis(name + ".kernel_h", kernel), w = graph.axis(name + ".kernel_w", kernel);
  auto initial = pytorch_default(static_cast<double>(in.extent()) * kernel * kernel);
  weight = graph.state(name + ".weight", dtype, {out, in, h, w}, initial);
  bias = graph.state(name + ".bias", dtype, {out}, initial);
}

Tensor Conv2d::operator()(const Tensor& x) const {
  Graph::Scope scope(x.graph(), name_);
  return conv2d(x, weight, window_) + bias;
}

Mlp::Mlp(Graph& graph, Axis in, const std::vector<std::int64_t>& hidden, Axis out, DType dtype) {
  for (std::size_t i = 0; i < hidden.size(); ++i) {
    Axis axis = graph.axis("hidden" + std::to_string(i + 1), hidden[i]);
    layers_.emplace_back(graph, "linear" + std::to_string(i + 1), Axes{in}, axis, dtype);
    in = axis;
  }
  layers_.emplace_back(graph, "linear" + std::to_string(hidden.size() + 1), Axes{in}, out, dtype);
}

Tensor Mlp::operator()(const Tensor& x) const {
  Tensor y = layers_[0](x);
  for (std::size_t i = 1; i < layers_.size(); ++i) y = layers_[i](relu(y));
  return y;
}

Parameters Mlp::parameters() const {
  Parameters all;
  for (const Linear& layer : layers_)
    for (const Tensor& parameter : layer.parameters()) all.push_back(parameter);
  return all;
}

Tensor cross_entropy(const Tensor& logits, const Tensor& target) {
  Graph::Scope scope(logits.graph(), "loss");
  return mean(softmax_cross_entropy(logits, target));
}

void sgd(Graph& graph, const Tensor& loss, const Parameters& parameters, const SgdOptions& options) {
  const std::vector<Tensor> all = full_gradients(loss, parameters);
  Graph::Scope scope(graph, update_scope);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Tensor& w = parameters[i];
    tegula::sgd(w, options.momentum != 0 ? moment(graph, w, ".momentum") : Tensor(), all[i], options);
  }
}

AdamWState adamw(Graph& graph, const Tensor& loss, const Parameters& parameters,
                 const AdamWOptions& options) {
  Tensor loss_scale, good;
  if (options.loss_scale > 0) {
    loss_scale = graph.state("loss_scale", loss.dtype(), {}, Initializer::fill(options.loss_scale));
    good = graph.state("loss_scale.good_steps", loss.dtype(), {}, Initializer::fill(0));
  }
  const std::vector<Tensor> all = full_gradients(loss_scale ? loss * loss_scale : loss, parameters);
  Graph::Scope scope(graph, update_scope);
  Tensor norm, factor;
  if (options.clip > 0 || loss_scale) {
    constexpr double any = 1e30;  // 1 for every norm that occurs, 0 for an infinite one
    norm = loss_scale ? global_norm(all) / loss_scale : global_norm(all);
    factor = clip_factor(norm, options.clip > 0 ? options.clip : any);
    if (loss_scale) factor = factor / loss_scale;
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Tensor& w = parameters[i];
    const bool decays = !options.decays || options.decays(w);
    adam(w, moment(graph, w, ".exp_avg"), moment(graph, w, ".exp_avg_sq"), all[i],
         {.beta1 = options.beta1,
          .beta2 = options.beta2,
          .epsilon = options.epsilon,
          .weight_decay = decays ? options.weight_decay : 0,
          .decoupled = true},
         factor);
  }
  if (loss_scale) update_loss_scale(loss_scale, good, norm);
  return {norm, loss_scale};
}

Tensor global_norm(const std::vector<Tensor>& tensors) {
  Tensor squares;
  for (const Tensor& x : tensors) squares = squares ? squares + contract(x, x, {}) : contract(x, x, {});
  return sqrt(squares);
}

Tensor clip_factor(const Tensor& norm, double largest) {
  Graph& graph = norm.graph();
  Tensor most = fill(graph, largest, {}, norm.dtype()), little = fill(graph, 1e-6, {}, norm.dtype());
  return apply(pointwise::Minimum{}, most / (norm + little), fill(graph, 1, {}, norm.dtype()));
}

}  // namespace tegula::layers
