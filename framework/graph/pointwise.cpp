#include "framework/graph/pointwise.hpp"

#include <algorithm>
#include <stdexcept>

#include "framework/graph/constant.hpp"
#include "framework/graph/ops.hpp"

namespace tegula {

Axes detail::broadcast_axes(std::string_view op, std::span<const Tensor> inputs) {
  auto fail = [&](const std::string& what) {
    std::string text = "[" + std::string(op) + "] " + what + ":";
    for (const Tensor& x : inputs) text += " " + x.describe() + (&x == &inputs.back() ? "" : ",");
    throw std::invalid_argument(text);
  };
  const Tensor& widest =
      *std::ranges::max_element(inputs, {}, [](const Tensor& x) { return x.axes().size(); });
  Graph& graph = widest.graph();
  for (const Tensor& x : inputs) {
    if (x.dtype() != widest.dtype()) fail("the inputs differ in dtype (cast() one of them)");
    bool equal_rank = x.axes().size() == widest.axes().size();
    for (std::size_t i = 0; i < x.axes().size(); ++i) {
      if (widest.has(x.axes()[i])) continue;
      if (!equal_rank || x.has(widest.axes()[i]))
        fail("axis " + x.axes()[i].name() +
             " is in one input only (use one Axis for both, or broadcast_to())");
      if (x.axes()[i].extent() != widest.axes()[i].extent())
        fail("axes " + x.axes()[i].name() + " and " + widest.axes()[i].name() + " differ in extent");
      graph.join(x.axes()[i], widest.axes()[i], op);
    }
  }
  return widest.axes();
}

std::vector<std::int64_t> detail::broadcast_strides(const TileRange& range, const Axes& output,
                                                    const Axes& input) {
  std::vector<std::int64_t> strides(output.size(), 0);
  std::int64_t stride = 1;
  for (std::size_t i = input.size(); i-- > 0;) {
    strides[std::ranges::find(output, input[i]) - output.begin()] = stride;
    stride *= range.extent(input[i]);
  }
  return strides;
}

Tensor detail::reduce_to(const Tensor& x, const Tensor& gradient) {
  Axes missing, kept;
  for (const Axis& axis : gradient.axes()) (x.has(axis) ? kept : missing).push_back(axis);
  Tensor reduced = missing.empty() ? gradient : sum(gradient, missing);
  Axes order;
  for (const Axis& axis : x.axes())
    if (reduced.has(axis)) order.push_back(axis);
  return order == kept ? reduced : permute(reduced, order);
}

Tensor broadcast_to(const Tensor& x, const Axes& axes) {
  if (x.axes() == axes) return x;
  for (const Axis& axis : x.axes())
    if (std::ranges::find(axes, axis) == axes.end())
      throw std::invalid_argument("[broadcast_to] axis " + axis.name() + " of " + x.describe() +
                                  " is not among the target's axes");
  if (auto constant = detail::constant_of(x)) return detail::constant(x.graph(), *constant, axes, x.dtype());
  static const Semantics semantics{
      .name = "broadcast",
      .task =
          [](const Node& node, const TileRange& range) {
            const Axes& to = node.outputs[0].axes();
            return TaskSpec::of(
                Pointwise<pointwise::Identity>{
                    {}, {range.extents(to), {detail::broadcast_strides(range, to, node.inputs[0].axes())}}},
                node.outputs[0].dtype());
          },
      .gradient = [](const Node& node, std::span<const Tensor> dy) -> std::vector<Tensor> {
        return {detail::reduce_to(node.inputs[0], broadcast_to(dy[0], node.outputs[0].axes()))};
      }};
  return x.graph().emit(semantics, {}, {x}, {{x.dtype(), axes}})[0];
}

}  // namespace tegula
