// Softmax and cross-entropy in one, with integer targets.
#include "kernels/cross_entropy.hpp"

#include <algorithm>
#include <stdexcept>

#include "framework/graph/ops.hpp"
#include "kernels/one_hot.hpp"

namespace tegula {

namespace {

int rows_of(const Tensor& target, const TileRange& range) {
  return static_cast<int>(range.elements(target.axes()));
}

Axes class_axis(const Node& node) { return {node.inputs[0].axes().back()}; }

// dlogits = (softmax(logits) - one_hot(target)) dloss, on any tile of classes
const Semantics gradient_semantics{
    .name = "softmax_cross_entropy_grad",
    .task =
        [](const Node& node, const TileRange& range) {
          const Axis& classes = node.outputs[0].axes().back();
          SoftmaxCrossEntropyGrad op{};
          op.rows = rows_of(node.inputs[1], range);
          op.cols = static_cast<int>(range.extent(classes));
          op.class_begin = static_cast<int>(range.begin(classes));
          return TaskSpec::of(op, node.outputs[0].dtype());
        },
    .gradient = [](const Node& node, std::span<const Tensor> outputs) -> std::vector<Tensor> {
      const Tensor &logits = node.inputs[0], &target = node.inputs[1], &lse = node.inputs[2],
                   &dloss = node.inputs[3];
      Tensor g = broadcast_to(outputs[0], logits.axes());
      Tensor p = apply(pointwise::ExpMinus{}, logits, lse);
      Tensor by_logits = g * p * dloss;
      Tensor by_dloss =
          sum(g * (p - one_hot(target, logits.axes().back(), logits.dtype())), class_axis(node));
      return {by_logits, {}, -sum(by_logits, class_axis(node)), by_dloss};
    }};

const Semantics semantics{
    .name = "softmax_cross_entropy",
    .task =
        [](const Node& node, const TileRange& range) {
          SoftmaxCrossEntropy op{};
          op.rows = rows_of(node.inputs[1], range);
          op.cols = static_cast<int>(range.extent(node.inputs[0].axes().back()));
          return TaskSpec::of(op, node.inputs[0].dtype());
        },
    .gradient = [](const Node& node, std::span<const Tensor> outputs) -> std::vector<Tensor> {
      const Tensor &logits = node.inputs[0], &target = node.inputs[1], &lse = node.outputs[1];
      Tensor by_logits;
      if (outputs[0]) {
        Tensor dloss = broadcast_to(outputs[0], target.axes());
        by_logits = logits.graph().emit(gradient_semantics, {}, {logits, target, lse, dloss},
                                        {{logits.dtype(), logits.axes()}})[0];
      }
      if (outputs[1]) {  // only second derivatives use the log-sum-exp
        Tensor by_lse = apply(pointwise::ExpMinus{}, logits, lse) * outputs[1];
        by_logits = by_logits ? by_logits + by_lse : by_lse;
      }
      return {by_logits, {}};
    },
    .whole = class_axis,
    .expand = [](const Node& node) -> std::vector<Tensor> {
      const Tensor &logits = node.inputs[0], &target = node.inputs[1];
      Axes classes = class_axis(node);
      Tensor lse = log_sum_exp(logits, classes);
      Tensor zero = fill(logits.graph(), 0, {}, logits.dtype());
      Tensor picked = apply(pointwise::Where{}, one_hot(target, classes[0], logits.dtype()), logits, zero);
      return {lse - sum(picked, classes), lse};
    },
    .example = [](Graph& g) -> std::vector<Tensor> {
      Axis i = g.axis("i", 5), j = g.axis("j", 7);
      Tensor logits = g.state("logits", f64, {i, j}, Initializer::normal(0, 1));
      return {softmax_cross_entropy(logits, g.state("target", i32, {i}, Initializer::fill(3)))};
    }};

const Semantics one_hot_semantics{.name = "one_hot", .task = [](const Node& node, const TileRange& range) {
                                    const Axis& classes = node.outputs[0].axes().back();
                                    OneHot op{};
                                    op.rows = rows_of(node.inputs[0], range);
                                    op.cols = static_cast<int>(range.extent(classes));
                                    op.class_begin = static_cast<int>(range.begin(classes));
                                    return TaskSpec::of(op, node.outputs[0].dtype());
                                  }};

const RegisterSemantics registered(semantics);

}  // namespace

Tensor softmax_cross_entropy(const Tensor& logits, const Tensor& target) {
  Axes rows = logits.axes();
  if (!rows.empty()) rows.pop_back();
  auto same_extent = [](const Axis& a, const Axis& b) { return a.extent() == b.extent(); };
  if (target.dtype() != i32 || logits.axes().empty() || !std::ranges::equal(rows, target.axes(), same_extent))
    throw std::invalid_argument(
        "[softmax_cross_entropy] takes logits (rows..., classes) and i32 targets (rows...), got " +
        logits.describe() + " and " + target.describe());
  for (std::size_t i = 0; i < rows.size(); ++i)
    logits.graph().join(rows[i], target.axes()[i], "softmax_cross_entropy");
  return logits.graph().emit(semantics, {}, {logits, target},
                             {{logits.dtype(), rows}, {logits.dtype(), rows}})[0];
}

Tensor one_hot(const Tensor& target, const Axis& classes, DType dtype) {
  if (target.dtype() != i32)
    throw std::invalid_argument("[one_hot] takes i32 targets, got " + target.describe());
  Axes axes = target.axes();
  axes.push_back(classes);
  return target.graph().emit(one_hot_semantics, {}, {target}, {{dtype, axes}})[0];
}

}  // namespace tegula
