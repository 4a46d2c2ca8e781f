// Reverse-mode differentiation: walks the nodes backwards and lets each op emit its gradient as further ops.
#include <algorithm>
#include <stdexcept>

#include "framework/graph/ops.hpp"

namespace tegula {

namespace {

Tensor add_gradients(const Tensor& a, const Tensor& b, const Axes& axes) {
  auto covers = [](const Tensor& wide, const Tensor& narrow) {
    return std::ranges::all_of(narrow.axes(), [&](const Axis& axis) { return wide.has(axis); });
  };
  if (covers(a, b) || covers(b, a)) return a + b;
  return broadcast_to(a, axes) + b;
}

}  // namespace

std::vector<Tensor> gradients(const Tensor& loss, std::span<const Tensor> wrt) {
  if (!loss.axes().empty())
    throw std::invalid_argument("[gradients] the loss must be a scalar, got " + loss.describe() +
                                "; take its sum() or mean() first");
  Graph& graph = loss.graph();
  Graph::Scope scope(graph, "gradient");

  // Only what lies between `wrt` and the loss needs a gradient.
  std::vector<char> depends(graph.tensors().size(), 0);
  for (const Tensor& x : wrt) depends[x.id()] = 1;
  int last = loss.info().producer;
  for (int i = 0; i <= last; ++i) {
    const Node& node = graph.nodes()[i];
    if (std::ranges::any_of(node.inputs, [&](const Tensor& x) { return x && depends[x.id()]; }))
      for (const Tensor& y : node.outputs) depends[y.id()] = 1;
  }

  std::vector<Tensor> gradient(depends.size());
  if (depends[loss.id()]) gradient[loss.id()] = fill(graph, 1, {}, loss.dtype());
  for (int i = last; i >= 0; --i) {
    const Node& node = graph.nodes()[i];  // a deque: stays valid while nodes are appended
    std::vector<Tensor> outputs;
    for (const Tensor& y : node.outputs) outputs.push_back(gradient[y.id()]);
    bool flows = std::ranges::any_of(outputs, [](const Tensor& dy) { return bool(dy); });
    if (!flows || !node.semantics->gradient) continue;
    std::vector<Tensor> inputs = node.semantics->gradient(node, outputs);
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      const Tensor& x = node.inputs[k];
      if (!inputs[k] || !depends[x.id()]) continue;
      Tensor& sum = gradient[x.id()];
      sum = sum ? add_gradients(sum, inputs[k], x.axes()) : inputs[k];
    }
  }
  std::vector<Tensor> result;
  for (const Tensor& x : wrt) result.push_back(gradient[x.id()]);
  return result;
}

}  // namespace tegula
