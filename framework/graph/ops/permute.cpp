// Transposition: the axes of a tensor in another order.
#include "kernels/permute.hpp"

#include <algorithm>
#include <stdexcept>

#include "framework/graph/ops.hpp"

namespace tegula {

namespace {

const Semantics semantics{
    .name = "permute",
    .task =
        [](const Node& node, const TileRange& range) {
          const Axes &x = node.inputs[0].axes(), &y = node.outputs[0].axes();
          Permute op{};
          op.rank = static_cast<int>(x.size());
          for (std::size_t i = 0; i < x.size(); ++i) {
            op.extent[i] = static_cast<int>(range.extent(x[i]));
            op.permutation[i] = static_cast<int>(std::ranges::find(x, y[i]) - x.begin());
          }
          return TaskSpec::of(op, node.outputs[0].dtype());
        },
    .gradient = [](const Node& node, std::span<const Tensor> outputs) -> std::vector<Tensor> {
      return {detail::reduce_to(node.inputs[0], outputs[0])};
    },
    .example = [](Graph& g) -> std::vector<Tensor> {
      Axis i = g.axis("i", 5), j = g.axis("j", 3), k = g.axis("k", 4);
      Tensor x = g.state("x", f64, {i, j, k}, Initializer::normal(0, 1));
      return {permute(x, {k, i, j}), permute(x, {i, k, j})};
    }};

const RegisterSemantics registered(semantics);

}  // namespace

Tensor permute(const Tensor& x, const Axes& order) {
  if (order == x.axes()) return x;
  if (!std::ranges::is_permutation(order, x.axes()))
    throw std::invalid_argument("[permute] the new order does not have the axes of " + x.describe());
  return x.graph().emit(semantics, {}, {x}, {{x.dtype(), order}})[0];
}

}  // namespace tegula
