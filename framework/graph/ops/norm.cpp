// Layer norm and RMS norm over the last axis: one task per tile of rows while that axis is whole, else from means.
#include "kernels/norm.hpp"

#include <stdexcept>

#include "framework/graph/ops.hpp"

namespace tegula {

namespace {

struct Options {
  double epsilon;
  bool centred;
};

Axes last_axis(const Node& node) { return {node.inputs[0].axes().back()}; }

NormShape shape(const Node& node, const TileRange& range) {
  const Axes& axes = node.inputs[0].axes();
  const auto [epsilon, centred] = node.as<Options>();
  NormShape s{};
  s.rows = static_cast<int>(range.elements(Axes(axes.begin(), axes.end() - 1)));
  s.cols = static_cast<int>(range.extent(axes.back()));
  s.epsilon = epsilon;
  s.centred = centred;
  return s;
}

// x minus its mean where centred, and 1 / sqrt(its mean square + epsilon)
std::pair<Tensor, Tensor> normalized(const Tensor& x, const Options& options) {
  const Axes last{x.axes().back()};
  Tensor centred = options.centred ? x - mean(x, last) : x;
  Tensor epsilon = fill(x.graph(), options.epsilon, {}, x.dtype());
  return {centred, apply(pointwise::Rsqrt{}, mean(centred * centred, last) + epsilon)};
}

// Inputs x, weight, dy.
const Semantics gradient_semantics{.name = "norm_grad",
                                   .task =
                                       [](const Node& node, const TileRange& range) {
                                         return TaskSpec::of(NormGrad{shape(node, range)},
                                                             node.outputs[0].dtype());
                                       },
                                   .gradient = gradients_of_expansion,
                                   .whole = last_axis,
                                   .expand = [](const Node& node) -> std::vector<Tensor> {
                                     const auto& options = node.as<Options>();
                                     const Axes last = last_axis(node);
                                     const auto [centred, scale] = normalized(node.inputs[0], options);
                                     Tensor g = node.inputs[2] * node.inputs[1], n = centred * scale;
                                     Tensor rest = g - n * mean(g * n, last);
                                     return {scale * (options.centred ? rest - mean(g, last) : rest)};
                                   }};

// Inputs x, dy.
const Semantics weight_gradient_semantics{
    .name = "norm_weight_grad",
    .task =
        [](const Node& node, const TileRange& range) {
          return TaskSpec::of(NormWeightGrad{shape(node, range), !range.first()}, node.outputs[0].dtype());
        },
    .gradient = gradients_of_expansion,
    .whole = last_axis,
    .expand = [](const Node& node) -> std::vector<Tensor> {
      const auto [centred, scale] = normalized(node.inputs[0], node.as<Options>());
      const Axes& axes = node.inputs[0].axes();
      return {sum(node.inputs[1] * (centred * scale), Axes(axes.begin(), axes.end() - 1))};
    }};

// Inputs x, weight, bias (or none).
const Semantics semantics{
    .name = "norm",
    .task =
        [](const Node& node, const TileRange& range) {
          Norm op{shape(node, range)};
          op.has_bias = bool(node.inputs[2]);
          return TaskSpec::of(op, node.outputs[0].dtype());
        },
    .gradient = [](const Node& node, std::span<const Tensor> outputs) -> std::vector<Tensor> {
      const Tensor &x = node.inputs[0], &weight = node.inputs[1], &bias = node.inputs[2];
      Graph& graph = x.graph();
      Tensor dy = broadcast_to(outputs[0], x.axes());
      Tensor dx =
          graph.emit(gradient_semantics, node.attributes, {x, weight, dy}, {{x.dtype(), x.axes()}})[0];
      Tensor dweight =
          graph.emit(weight_gradient_semantics, node.attributes, {x, dy}, {{x.dtype(), weight.axes()}})[0];
      return {dx, dweight, bias ? detail::reduce_to(bias, dy) : Tensor()};
    },
    .whole = last_axis,
    .expand = [](const Node& node) -> std::vector<Tensor> {
      const auto [centred, scale] = normalized(node.inputs[0], node.as<Options>());
      Tensor y = centred * scale * node.inputs[1];
      return {node.inputs[2] ? y + node.inputs[2] : y};
    },
    .example = [](Graph& g) -> std::vector<Tensor> {
      Axis i = g.axis("i", 3), j = g.axis("j", 2), k = g.axis("k", 5);
      auto normal = Initializer::normal(0, 1);
      Tensor x = g.state("x", f64, {i, j, k}, normal), weight = g.state("weight", f64, {k}, normal),
             bias = g.state("bias", f64, {k}, normal);
      return {layer_norm(x, weight, bias), rms_norm(x, weight, 0.1)};
    }};

const RegisterSemantics registered(semantics);

Tensor norm(const char* name, const Tensor& x, const Tensor& weight, const Tensor& bias,
            const Options& options) {
  for (const Tensor& parameter : {weight, bias})
    if (parameter &&
        (x.axes().empty() || parameter.axes() != Axes{x.axes().back()} || parameter.dtype() != x.dtype()))
      throw std::invalid_argument("[" + std::string(name) +
                                  "] takes x (..., n) and parameters (n) of its dtype, got " + x.describe() +
                                  " and " + parameter.describe());
  return x.graph().emit(semantics, options, {x, weight, bias}, {{x.dtype(), x.axes()}})[0];
}

}  // namespace

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double epsilon) {
  return norm("layer_norm", x, weight, bias, {epsilon, true});
}

Tensor rms_norm(const Tensor& x, const Tensor& weight, double epsilon) {
  return norm("rms_norm", x, weight, {}, {epsilon, false});
}

}  // namespace tegula
