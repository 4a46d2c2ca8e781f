// Embedding lookup: a sum over the tiles of the table's rows, of which one contributes.
#include "kernels/embedding.hpp"

#include <stdexcept>

#include "framework/graph/ops.hpp"

namespace tegula {

namespace {

// Of both ops: n, rows and cols of the tile, and where it lies in the table.
template <class Op>
Op place(const Tensor& index, const Axes& table, const TileRange& range) {
  Op op{};
  op.n = static_cast<int>(range.elements(index.axes()));
  op.rows = static_cast<int>(range.extent(table[0]));
  op.cols = static_cast<int>(range.elements(Axes(table.begin() + 1, table.end())));
  op.row_begin = static_cast<int>(range.begin(table[0]));
  op.full_rows = static_cast<int>(range.full_extent(table[0]));
  op.accumulate = !range.first();
  return op;
}

// Inputs index, dy.
const Semantics gradient_semantics{
    .name = "embedding_grad",
    .task =
        [](const Node& node, const TileRange& range) {
          return TaskSpec::of(place<EmbeddingGrad>(node.inputs[0], node.outputs[0].axes(), range),
                              node.outputs[0].dtype());
        },
    .gradient = [](const Node& node, std::span<const Tensor> outputs) -> std::vector<Tensor> {
      return {{}, embedding(node.inputs[0], broadcast_to(outputs[0], node.outputs[0].axes()))};
    }};

// Inputs index, table.
const Semantics semantics{
    .name = "embedding",
    .task =
        [](const Node& node, const TileRange& range) {
          return TaskSpec::of(place<Embedding>(node.inputs[0], node.inputs[1].axes(), range),
                              node.outputs[0].dtype());
        },
    .gradient = [](const Node& node, std::span<const Tensor> outputs) -> std::vector<Tensor> {
      const Tensor &index = node.inputs[0], &table = node.inputs[1];
      if (is_half(table.dtype()))
        throw std::invalid_argument("[embedding] has no gradient by a table of " +
                                    std::string(name_of(table.dtype())) + ", where sums lose too much: " +
                                    table.describe() + "; keep it in f32 and cast() what is looked up");
      Tensor dy = broadcast_to(outputs[0], node.outputs[0].axes());
      return {{},
              table.graph().emit(gradient_semantics, {}, {index, dy}, {{table.dtype(), table.axes()}})[0]};
    },
    .example = [](Graph& g) -> std::vector<Tensor> {
      Axis i = g.axis("i", 2), j = g.axis("j", 3), rows = g.axis("rows", 5), k = g.axis("k", 3);
      Tensor table = g.state("table", f64, {rows, k}, Initializer::normal(0, 1));
      Tensor index = g.state("index", i32, {i, j}, Initializer::fill(3));
      return {embedding(index, table)};
    }};

const RegisterSemantics registered(semantics);

}  // namespace

Tensor embedding(const Tensor& index, const Tensor& table) {
  if (index.dtype() != i32 || table.axes().empty())
    throw std::invalid_argument(
        "[embedding] takes an i32 index (places...) and a table (rows, columns...), got " + index.describe() +
        " and " + table.describe());
  Axes axes = index.axes();
  axes.insert(axes.end(), table.axes().begin() + 1, table.axes().end());
  return table.graph().emit(semantics, {}, {index, table}, {{table.dtype(), axes}})[0];
}

}  // namespace tegula
