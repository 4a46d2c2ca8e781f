// Constant tensors.
#include "framework/graph/constant.hpp"
#include "framework/graph/ops.hpp"
#include "kernels/random.hpp"

namespace tegula {

namespace {

const Semantics semantics{.name = "fill", .task = [](const Node& node, const TileRange& range) {
                            const Tensor& y = node.outputs[0];
                            auto [value, divided_by] = node.as<detail::Constant>();
                            for (const Axis& axis : divided_by)
                              value /= static_cast<double>(range.full_extent(axis));
                            return TaskSpec::of(Fill{value, range.elements(y.axes())}, y.dtype());
                          }};

}  // namespace

Tensor detail::constant(Graph& graph, const Constant& constant, const Axes& axes, DType dtype) {
  return graph.emit(semantics, constant, {}, {{dtype, axes}})[0];
}

std::optional<detail::Constant> detail::constant_of(const Tensor& x) {
  const auto producer = static_cast<std::size_t>(x.info().producer);
  if (producer >= x.graph().nodes().size())
    return std::nullopt;  // none, or in an expansion that has been taken out
  const Node& node = x.graph().nodes()[producer];
  if (node.semantics != &semantics || node.outputs[0] != x) return std::nullopt;
  return node.as<Constant>();
}

Tensor fill(Graph& graph, double value, const Axes& axes, DType dtype) {
  return detail::constant(graph, {value, {}}, axes, dtype);
}

}  // namespace tegula
