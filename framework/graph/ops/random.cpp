// Random tensors and dropout: each tile is made from its place in the whole tensor.
#include "kernels/random.hpp"

#include <stdexcept>

#include "framework/graph/ops.hpp"

namespace tegula {

namespace {

TileInTensor place(const Tensor& y, const TileRange& range) {
  std::vector<std::int64_t> begin, full;
  for (const Axis& axis : y.axes()) {
    begin.push_back(range.begin(axis));
    full.push_back(range.full_extent(axis));
  }
  return {range.extents(y.axes()), begin, full};
}

// The stream of a random node is its tensor's number; a gradient draws from the stream of the dropout it belongs to.
RandomStream stream(const Graph& graph, int tensor) {
  return {graph.seed(), static_cast<std::uint64_t>(tensor), 0};
}

struct Range {
  double a, b;
};

template <class Op>
const Semantics draw_semantics{
    .name = Op::name, .task = [](const Node& node, const TileRange& range) {
      const Tensor& y = node.outputs[0];
      auto [a, b] = node.as<Range>();
      return TaskSpec::of(Op{a, b, stream(y.graph(), y.stream()), place(y, range)}, y.dtype());
    }};

struct DropoutOptions {
  double probability;
  int stream;  // -1: the output's own
};

Tensor dropout_of(const Tensor& x, DropoutOptions options);

const Semantics dropout_semantics{
    .name = "dropout",
    .task =
        [](const Node& node, const TileRange& range) {
          const Tensor& y = node.outputs[0];
          auto [probability, id] = node.as<DropoutOptions>();
          return TaskSpec::of(
              Dropout{probability, stream(y.graph(), id < 0 ? y.stream() : id), place(y, range)}, y.dtype());
        },
    .gradient = [](const Node& node, std::span<const Tensor> outputs) -> std::vector<Tensor> {
      const Tensor& y = node.outputs[0];
      auto [probability, id] = node.as<DropoutOptions>();
      return {dropout_of(broadcast_to(outputs[0], y.axes()), {probability, id < 0 ? y.stream() : id})};
    },
    .example = [](Graph& g) -> std::vector<Tensor> {
      Axis i = g.axis("i", 5), j = g.axis("j", 7);
      return {dropout(g.state("x", f64, {i, j}, Initializer::normal(0, 1)), 0.4),
              random_uniform(g, -1, 2, {i, j}, f64), random_normal(g, 1, 2, {j, i}, f64)};
    }};

Tensor dropout_of(const Tensor& x, DropoutOptions options) {
  return x.graph().emit(dropout_semantics, options, {x}, {{x.dtype(), x.axes()}})[0];
}

const RegisterSemantics registered(dropout_semantics);

}  // namespace

Tensor random_uniform(Graph& graph, double low, double high, const Axes& axes, DType dtype) {
  return graph.emit(draw_semantics<Uniform>, Range{low, high}, {}, {{dtype, axes}})[0];
}

Tensor random_normal(Graph& graph, double mean, double stddev, const Axes& axes, DType dtype) {
  return graph.emit(draw_semantics<Normal>, Range{mean, stddev}, {}, {{dtype, axes}})[0];
}

Tensor dropout(const Tensor& x, double probability) {
  if (!(probability >= 0 && probability < 1))
    throw std::invalid_argument("[dropout] the probability must be in [0, 1), got " +
                                std::to_string(probability));
  return probability == 0 ? x : dropout_of(x, {probability, -1});
}

}  // namespace tegula
