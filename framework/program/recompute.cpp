// Recomputation: nodes of gradients read copies of forward values, made by copies of the forward nodes.
#include <map>
#include <optional>
#include <set>

#include "framework/program/listing.hpp"

namespace tegula {

namespace {

class Recomputation {
 public:
  Recomputation(Graph& graph, const std::vector<Node>& nodes, const Plan& plan, const Layout& layout,
                const std::vector<Tensor>& keep)
      : graph_(graph), nodes_(nodes), unit_(nodes.size()) {
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      if (is_backward(nodes[i]) || nodes[i].outputs.empty()) continue;
      if (auto scope = plan.recomputed(nodes[i].scope))
        unit_[i] = Unit(*scope, layout.stage(nodes[i].outputs[0]));
      for (const Tensor& y : nodes[i].outputs) maker_[y.id()] = i;
    }
    // What leaves its unit is kept.
    for (const Tensor& tensor : keep) kept_.insert(tensor.id());
    for (std::size_t i = 0; i < nodes.size(); ++i)
      for (const Tensor& x : nodes[i].inputs)
        if (x && !is_backward(nodes[i]) && maker_.contains(x.id()) && unit_[maker_[x.id()]] != unit_[i])
          kept_.insert(x.id());
  }

  std::vector<Node> run() {
    for (const Node& node : nodes_) {
      Node made = node;
      if (is_backward(node))
        for (Tensor& x : made.inputs) x = available(x);
      result_.push_back(std::move(made));
    }
    return std::move(result_);
  }

 private:
  using Unit = std::pair<std::string, int>;  // scope and stage

  static bool is_backward(const Node& node) { return node.scope.starts_with(gradient_scope); }

  // x itself if it is kept, else its copy, with all that it is made from.
  Tensor available(const Tensor& x) {
    if (!x || kept_.contains(x.id())) return x;
    auto maker = maker_.find(x.id());
    if (maker == maker_.end() || !unit_[maker->second]) return x;
    if (auto known = copies_.find(x.id()); known != copies_.end()) return known->second;
    const Node& node = nodes_[maker->second];
    std::vector<Tensor> inputs;
    for (const Tensor& input : node.inputs) inputs.push_back(available(input));
    Node copy = graph_.repeat(node, std::move(inputs));
    for (std::size_t i = 0; i < node.outputs.size(); ++i) copies_[node.outputs[i].id()] = copy.outputs[i];
    result_.push_back(std::move(copy));
    return copies_.at(x.id());
  }

  Graph& graph_;
  const std::vector<Node>& nodes_;
  std::vector<std::optional<Unit>> unit_;  // by node; none: all it makes is kept
  std::map<int, std::size_t> maker_;       // by tensor
  std::set<int> kept_;
  std::map<int, Tensor> copies_;
  std::vector<Node> result_;
};

}  // namespace

std::vector<Node> recompute(Graph& graph, const std::vector<Node>& nodes, const Plan& plan,
                            const Layout& layout, const std::vector<Tensor>& keep) {
  return Recomputation(graph, nodes, plan, layout, keep).run();
}

}  // namespace tegula
