// The structural ops, from the examples that they state.
#include <doctest/doctest.h>

#include "framework/graph/ops.hpp"
#include "tests/graph/derivatives.hpp"

using namespace tegula;

namespace {

void check(Graph& graph, const std::string& name, const std::vector<Tensor>& results) {
  std::vector<Tensor> states;
  std::vector<std::vector<Tensor>> directions;
  for (int id = 0; id < static_cast<int>(graph.tensors().size()); ++id) {
    Tensor tensor = graph.tensor(id);
    if (tensor.info().kind != TensorInfo::Kind::state || tensor.dtype() != f64) continue;
    states.push_back(tensor);
    directions.push_back({tensor});
  }
  std::vector<test::Subject> subjects;
  for (const Tensor& y : results)
    subjects.push_back({name + " " + std::to_string(subjects.size()) + ", " + y.describe(), y, states});
  test::check_derivatives(graph, subjects, directions);
}

Tensor normal(Graph& graph, const char* name, Axes axes) {
  return graph.state(name, f64, std::move(axes), Initializer::normal(0, 1));
}

}  // namespace

TEST_CASE("values and derivatives of every registered op") {
  CHECK(registered_semantics().size() >= 8);
  for (const Semantics* semantics : registered_semantics()) {
    Graph graph;
    std::vector<Tensor> results = semantics->example(graph);
    check(graph, std::string(semantics->name), results);
  }
}

TEST_CASE("values and derivatives of compositions") {
  Graph g;
  Axis i = g.axis("i", 5), j = g.axis("j", 3), k = g.axis("k", 7), n = g.axis("n", 3);
  Tensor x = normal(g, "x", {i, k}), w = normal(g, "w", {k, j}), b = normal(g, "b", {j}),
         s = normal(g, "s", {});
  Tensor h = matmul(x, w);
  Tensor image = normal(g, "image", {n, j, g.axis("height", 4), g.axis("width", 3)});
  Tensor filter = normal(g, "filter", {i, j, g.axis("rows", 3), g.axis("columns", 2)});
  Tensor c = normal(g, "c", {i});
  // Epilogues, sums of gradients, gradients that lack axes, tensors used more than once, scalars.
  check(g, "composition",
        {relu(h + b), tanh(h + b), sigmoid(h) * h, h * h + h, broadcast_to(b, {j, i}),
         broadcast_to(sum(x * x), {j}), s * h + b, softmax(h + b) * b, mean(h, {i}) - b, h - mean(h, {j}) - s,
         sum(broadcast_to(s, {j, k}) * w, {k}), contract(x, x, {i}), contract(h, c, {j}),
         relu(conv2d(image, filter, {.stride = 1, .padding = 1}) + c), log_sum_exp(x, {i, k})});
}
