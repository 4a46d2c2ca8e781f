// Softmax over the last axis: one task per row tile while that axis is whole, else from tiled log-sum-exp.
#include "kernels/softmax.hpp"

#include <stdexcept>

#include "framework/graph/ops.hpp"

namespace tegula {

namespace {

template <class Op>
TaskSpec rows_task(const Node& node, const TileRange& range) {
  const Axes& axes = node.outputs[0].axes();
  auto columns = static_cast<int>(range.extent(axes.back()));
  auto rows = static_cast<int>(range.elements(Axes(axes.begin(), axes.end() - 1)));
  return TaskSpec::of(Op{rows, columns}, node.outputs[0].dtype());
}

Axes last_axis(const Node& node) { return {node.outputs[0].axes().back()}; }

// dx = y (dy - sum(y dy))
const Semantics gradient_semantics{
    .name = "softmax_grad",
    .task = rows_task<SoftmaxGrad>,
    .gradient = [](const Node& node, std::span<const Tensor> outputs) -> std::vector<Tensor> {
      const Tensor &y = node.inputs[0], &dy = node.inputs[1];
      Tensor g = broadcast_to(outputs[0], y.axes());
      Axes last = last_axis(node);
      Tensor by_y = g * (dy - sum(y * dy, last)) - dy * sum(g * y, last);
      Tensor by_dy = y * g - y * sum(g * y, last);
      return {by_y, by_dy};
    },
    .whole = last_axis,
    .expand = [](const Node& node) -> std::vector<Tensor> {
      const Tensor &y = node.inputs[0], &dy = node.inputs[1];
      return {y * (dy - sum(y * dy, last_axis(node)))};
    }};

const Semantics semantics{
    .name = "softmax",
    .task = rows_task<Softmax>,
    .gradient = [](const Node& node, std::span<const Tensor> outputs) -> std::vector<Tensor> {
      const Tensor& y = node.outputs[0];
      Tensor dy = broadcast_to(outputs[0], y.axes());
      return y.graph().emit(gradient_semantics, {}, {y, dy}, {{y.dtype(), y.axes()}});
    },
    .whole = last_axis,
    .expand = [](const Node& node) -> std::vector<Tensor> {
      const Tensor& x = node.inputs[0];
      return {apply(pointwise::ExpMinus{}, x, log_sum_exp(x, last_axis(node)))};
    },
    .example = [](Graph& g) -> std::vector<Tensor> {
      Axis i = g.axis("i", 5), j = g.axis("j", 7);
      return {softmax(g.state("x", f64, {i, j}, Initializer::normal(0, 1)))};
    }};

const RegisterSemantics registered(semantics);

}  // namespace

Tensor softmax(const Tensor& x) {
  if (x.axes().empty())
    throw std::invalid_argument("[softmax] needs an axis, got the scalar " + x.describe());
  return x.graph().emit(semantics, {}, {x}, {{x.dtype(), x.axes()}})[0];
}

}  // namespace tegula
