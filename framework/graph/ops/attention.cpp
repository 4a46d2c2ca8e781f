// Attention in tiles of queries and keys: one task per pair of them, in a chain over the keys.
#include "kernels/attention.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "framework/graph/ops.hpp"

namespace tegula {

namespace {

struct Options {
  AttentionOptions attention;
  int stream = -1;  // of the dropout: the forward node's output; -1: this node's own
};

// The axes of queries: batch, queries, heads, [groups,] dim. Of keys: batch, keys, heads, dim.
const Axes& query_axes(const Node& node) { return node.axes(0); }
const Axes& key_axes(const Node& node) { return node.axes(1); }

AttentionShape shape(const Node& node, const TileRange& range) {
  const Axes &query = query_axes(node), &key = key_axes(node);
  const auto& [options, stream] = node.as<Options>();
  AttentionShape s{};
  s.batch = static_cast<int>(range.extent(query[0]));
  s.queries = static_cast<int>(range.extent(query[1]));
  s.keys = static_cast<int>(range.extent(key[1]));
  s.heads = static_cast<int>(range.extent(query[2]));
  s.groups = query.size() == 5 ? static_cast<int>(range.extent(query[3])) : 1;
  s.dim = static_cast<int>(range.extent(query.back()));
  s.causal = options.causal;
  s.batch_begin = static_cast<int>(range.begin(query[0]));
  s.head_begin = static_cast<int>(range.begin(query[2]));
  s.query_begin = static_cast<int>(range.begin(query[1]));
  s.key_begin = static_cast<int>(range.begin(key[1]));
  s.full_heads = static_cast<int>(range.full_extent(query[2]));
  s.full_queries = static_cast<int>(range.full_extent(query[1]));
  s.full_keys = static_cast<int>(range.full_extent(key[1]));
  s.scale = options.scale;
  s.dropout = options.dropout;
  const int tensor = stream < 0 ? node.outputs[0].stream() : stream;
  s.random = {node.outputs[0].graph().seed(), static_cast<std::uint64_t>(tensor), 0};
  return s;
}

template <class Op>
TaskSpec task(const Node& node, const TileRange& range) {
  Op op;
  op.shape = shape(node, range);
  op.accumulate = !range.first();
  return TaskSpec::of(op, node.inputs[0].dtype());
}

bool masked(const Node& node, const TileRange& range) {
  const Axis &query = query_axes(node)[1], &key = key_axes(node)[1];
  const AttentionOptions& options = node.as<Options>().attention;
  return options.causal && !options.positioned &&
         range.begin(key) >= range.begin(query) + range.extent(query);
}

// A head, and a group of heads, is one matrix.
Axes heads(const Node& node) { return Axes(query_axes(node).begin() + 3, query_axes(node).end()); }

std::vector<Tensor> no_second(const Node&, std::span<const Tensor>) {
  throw std::invalid_argument("[attention] has no second derivative");
}

// Inputs of all gradients: q, k, v, y, dy, log-sum-exp.
const Semantics query_gradient{.name = "attention_grad_query",
                               .task = task<AttentionGradQuery>,
                               .gradient = no_second,
                               .whole = heads,
                               .skip = masked};
const Semantics key_value_gradient{.name = "attention_grad_key_value",
                                   .task = task<AttentionGradKeyValue>,
                                   .gradient = no_second,
                                   .whole = heads,
                                   .chain = true,
                                   .skip = masked};

std::vector<Axes> with(const Node& node, std::initializer_list<Axes> outputs) {
  std::vector<Axes> renamed(node.renamed.begin(), node.renamed.begin() + 6);
  renamed.insert(renamed.end(), outputs);
  return renamed;
}

// All three at once, with half of the products: where sequences are whole.
const Semantics all_gradients{
    .name = "attention_grad",
    .task = task<AttentionGrad>,
    .gradient = no_second,
    .whole =
        [](const Node& node) {
          Axes whole = heads(node);
          whole.insert(whole.end(), {query_axes(node)[1], key_axes(node)[1]});
          return whole;
        },
    .expand = [](const Node& node) -> std::vector<Tensor> {
      const Tensor &q = node.inputs[0], &k = node.inputs[1];
      Graph& graph = q.graph();
      Tensor dq = graph.emit(query_gradient, node.attributes, node.inputs, {{q.dtype(), q.axes()}},
                             with(node, {query_axes(node)}))[0];
      std::vector<Tensor> by_keys = graph.emit(key_value_gradient, node.attributes, node.inputs,
                                               {{q.dtype(), k.axes()}, {q.dtype(), k.axes()}},
                                               with(node, {key_axes(node), key_axes(node)}));
      return {dq, by_keys[0], by_keys[1]};
    }};

// Inputs q, k, v; outputs y and the log-sum-exp of each query's scores.
const Semantics semantics{
    .name = "attention",
    .task = task<Attention>,
    .gradient = [](const Node& node, std::span<const Tensor> outputs) -> std::vector<Tensor> {
      const Tensor &q = node.inputs[0], &k = node.inputs[1], &v = node.inputs[2], &y = node.outputs[0];
      if (!outputs[0]) return {};
      Options options = node.as<Options>();
      options.stream = y.stream();
      const Axes &query = query_axes(node), &key = key_axes(node), &rows = node.axes(4);
      return q.graph().emit(all_gradients, options,
                            {q, k, v, y, broadcast_to(outputs[0], y.axes()), node.outputs[1]},
                            {{q.dtype(), q.axes()}, {q.dtype(), k.axes()}, {q.dtype(), k.axes()}},
                            {query, key, key, query, query, rows, query, key, key});
    },
    .whole = heads,
    .chain = true,
    .skip = masked,
    .example = [](Graph& g) -> std::vector<Tensor> {
      Axis batch = g.axis("batch", 2), sequence = g.axis("sequence", 5), head = g.axis("head", 3),
           group = g.axis("group", 2), dim = g.axis("dim", 4), other = g.axis("other", 3);
      auto normal = Initializer::normal(0, 1);
      auto keys = [&](const char* name, const Axis& length) {
        return g.state(name, f64, {batch, length, head, dim}, normal);
      };
      Tensor q = g.state("q", f64, {batch, sequence, head, group, dim}, normal),
             plain = keys("plain", sequence);
      Tensor k = keys("k", sequence), v = keys("v", sequence);
      return {attention(q, k, v, {.causal = true}), attention(plain, k, v, {.causal = true, .dropout = 0.3}),
              attention(q, keys("other k", other), keys("other v", other), {.scale = 0.5})};
    }};

const RegisterSemantics registered(semantics);

}  // namespace

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, AttentionOptions options) {
  auto fits = [&] {
    const Axes &query = q.axes(), &key = k.axes();
    return (query.size() == 4 || query.size() == 5) && key.size() == 4 && key == v.axes() &&
           query[0] == key[0] && query[2] == key[2] && query.back() == key[3] && q.dtype() == k.dtype() &&
           q.dtype() == v.dtype();
  };
  if (!fits())
    throw std::invalid_argument(
        "[attention] takes q (batch, queries, heads, [groups,] dim) and k, v (batch, keys, heads, dim), "
        "got " +
        q.describe() + ", " + k.describe() + " and " + v.describe());
  if (options.scale == 0) options.scale = 1 / std::sqrt(static_cast<double>(q.axes().back().extent()));
  if (!(options.dropout >= 0 && options.dropout < 1))
    throw std::invalid_argument("[attention] the dropout probability must be in [0, 1), got " +
                                std::to_string(options.dropout));
  Graph& graph = q.graph();
  const Axes query = q.axes(), rows(query.begin(), query.end() - 1);
  Axes key = k.axes();
  if (key[1] == query[1]) key[1] = graph.twin(key[1]);
  return graph.emit(semantics, Options{options}, {q, k, v}, {{q.dtype(), query}, {f64, rows}},
                    {query, key, key, query, rows})[0];
}

}  // namespace tegula
