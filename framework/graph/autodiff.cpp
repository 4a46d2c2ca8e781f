// Reverse-mode differentiation: walks the nodes backwards and lets each op emit its gradient as further ops.
#include <algorithm>
#include <map>
#include <optional>
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

// Goes back through the nodes from `last` to `first`, given the gradients (by tensor) by their outputs, for as long as a
// node depends on `wrt`.
std::vector<Tensor> go_back(Graph& graph, int first, int last, std::map<int, Tensor> gradient,
                            std::span<const Tensor> wrt, bool scopes) {
  std::vector<char> depends(graph.tensors().size(), 0);
  for (const Tensor& x : wrt)
    if (x) depends[x.id()] = 1;
  for (int i = first; i <= last; ++i) {
    const Node& node = graph.nodes()[i];
    if (std::ranges::any_of(node.inputs, [&](const Tensor& x) { return x && depends[x.id()]; }))
      for (const Tensor& y : node.outputs) depends[y.id()] = 1;
  }
  for (int i = last; i >= first; --i) {
    const Node& node = graph.nodes()[i];  // a deque: stays valid while nodes are appended
    std::vector<Tensor> outputs;
    bool flows = false;
    for (const Tensor& y : node.outputs) {
      auto found = gradient.find(y.id());
      outputs.push_back(found == gradient.end() || !depends[y.id()] ? Tensor() : found->second);
      flows |= bool(outputs.back());
    }
    if (!flows || !node.semantics->gradient) continue;
    std::optional<Graph::Scope> scope;
    if (scopes) scope.emplace(graph, node.scope);
    std::vector<Tensor> inputs = node.semantics->gradient(node, outputs);
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      const Tensor& x = node.inputs[k];
      if (!inputs[k] || !depends[x.id()]) continue;
      Tensor& sum = gradient[x.id()];
      sum = sum ? add_gradients(sum, inputs[k], x.axes()) : inputs[k];
    }
  }
  std::vector<Tensor> result;
  for (const Tensor& x : wrt) result.push_back(x && gradient.contains(x.id()) ? gradient[x.id()] : Tensor());
  return result;
}

}  // namespace

std::vector<Tensor> gradients(const Tensor& loss, std::span<const Tensor> wrt) {
  if (!loss.axes().empty())
    throw std::invalid_argument("[gradients] the loss must be a scalar, got " + loss.describe() +
                                "; take its sum() or mean() first");
  Graph& graph = loss.graph();
  Graph::Scope scope(graph, gradient_scope);
  const Tensor one = fill(graph, 1, {}, loss.dtype());
  return go_back(graph, 0, loss.info().producer, {{loss.id(), one}}, wrt, true);
}

std::vector<Tensor> gradients_of_expansion(const Node& node, std::span<const Tensor> outputs) {
  Graph& graph = node.outputs[0].graph();
  const auto first = static_cast<int>(graph.nodes().size());
  const std::vector<Tensor> expanded = node.semantics->expand(node);
  const auto last = static_cast<int>(graph.nodes().size()) - 1;
  std::map<int, Tensor> gradient;
  for (std::size_t i = 0; i < expanded.size(); ++i)
    if (outputs[i]) gradient[expanded[i].id()] = broadcast_to(outputs[i], expanded[i].axes());
  return go_back(graph, first, last, std::move(gradient), node.inputs, false);
}

}  // namespace tegula
