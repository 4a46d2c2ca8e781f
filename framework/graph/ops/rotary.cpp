// Rotary position embedding.
#include "kernels/rotary.hpp"

#include <algorithm>
#include <stdexcept>

#include "framework/graph/ops.hpp"

namespace tegula {

namespace {

struct Options {
  Axis position;
  double base;
  bool inverse;
};

Tensor rotate(const Tensor& x, const Options& options);

const Semantics semantics{
    .name = "rotary",
    .task =
        [](const Node& node, const TileRange& range) {
          const auto& [position, base, inverse] = node.as<Options>();
          const Axes& axes = node.outputs[0].axes();
          const auto at = std::ranges::find(axes, position);
          Rotary op{};
          op.batch = static_cast<int>(range.elements(Axes(axes.begin(), at)));
          op.length = static_cast<int>(range.extent(position));
          op.heads = static_cast<int>(range.elements(Axes(at + 1, axes.end() - 1)));
          op.dim = static_cast<int>(range.extent(axes.back()));
          op.begin = static_cast<int>(range.begin(position));
          op.inverse = inverse;
          op.base = base;
          return TaskSpec::of(op, node.outputs[0].dtype());
        },
    .gradient = [](const Node& node, std::span<const Tensor> outputs) -> std::vector<Tensor> {
      const auto& [position, base, inverse] = node.as<Options>();
      return {rotate(broadcast_to(outputs[0], node.outputs[0].axes()), {position, base, !inverse})};
    },
    .whole = [](const Node& node) -> Axes { return {node.outputs[0].axes().back()}; },
    .example = [](Graph& g) -> std::vector<Tensor> {
      Axis i = g.axis("i", 2), position = g.axis("position", 5), h = g.axis("h", 3), k = g.axis("k", 4);
      return {rotary(g.state("x", f64, {i, position, h, k}, Initializer::normal(0, 1)), position, 100)};
    }};

const RegisterSemantics registered(semantics);

Tensor rotate(const Tensor& x, const Options& options) {
  return x.graph().emit(semantics, options, {x}, {{x.dtype(), x.axes()}})[0];
}

}  // namespace

Tensor rotary(const Tensor& x, const Axis& position, double base) {
  if (!x.has(position) || x.axes().back() == position || x.axes().back().extent() % 2 != 0)
    throw std::invalid_argument("[rotary] takes x (..., position, ..., dim) with an even dim, got " +
                                x.describe() + " and the position axis " + position.name());
  return rotate(x, {position, base, false});
}

}  // namespace tegula
