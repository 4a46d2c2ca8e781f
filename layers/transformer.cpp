#include "layers/transformer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace tegula::layers {

namespace {

constexpr double deviation = 0.02;  // of initial weights: Radford et al., 2019

std::int64_t product(const Axes& axes) {
  std::int64_t all = 1;
  for (const Axis& axis : axes) all *= axis.extent();
  return all;
}

Axes joined(Axes first, const Axes& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

void check(const TransformerOptions& o) {
  for (auto [name, value] : {std::pair("layers", o.layers),
                             {"heads", o.heads},
                             {"key-value heads", o.key_value_heads},
                             {"head_dim", o.head_dim},
                             {"hidden", o.hidden}})
    if (value < 1)
      throw std::invalid_argument(fmt::format("[transformer] {} = {}: it must be at least 1", name, value));
  if (o.heads % o.key_value_heads != 0)
    throw std::invalid_argument(fmt::format(
        "[transformer] {} query heads cannot share {} key-value heads evenly", o.heads, o.key_value_heads));
  if (o.kind == TransformerOptions::Kind::gpt2 && o.heads != o.key_value_heads)
    throw std::invalid_argument(
        "[transformer] GPT-2 has no grouped queries: give as many key-value heads as heads");
  if (o.kind == TransformerOptions::Kind::llama && o.head_dim % 2 != 0)
    throw std::invalid_argument(
        fmt::format("[transformer] rotary embedding needs an even head_dim, got {}", o.head_dim));
}

}  // namespace

Transformer::Transformer(Graph& graph, const TransformerOptions& options, Axis sequence, Axis vocabulary)
    : graph_(graph), options_(options), sequence_(sequence), vocabulary_(vocabulary) {
  check(options);
  const bool gpt2 = options.kind == TransformerOptions::Kind::gpt2;
  embed_ = graph.axis("embed", options.heads * options.head_dim);
  head_ = graph.axis("head", options.key_value_heads);
  if (!gpt2) group_ = graph.axis("group", options.heads / options.key_value_heads);
  dim_ = graph.axis("dim", options.head_dim);
  hidden_ = graph.axis("hidden", options.hidden);
  const Axes keys{head_, dim_}, queries = gpt2 ? keys : Axes{head_, group_, dim_};
  // What is added to the residual stream starts smaller, by the number of such additions.
  const double residual = deviation / std::sqrt(2.0 * static_cast<double>(options.layers));
  const std::int64_t embed = embed_.extent();

  const Initializer normal = Initializer::normal(0, deviation);
  const std::string prefix = gpt2 ? "transformer." : "model.", tokens = gpt2 ? "wte" : "embed_tokens";
  tokens_ = add(graph.state(prefix + tokens + ".weight", f32, {vocabulary, embed_}, normal),
                prefix + tokens + ".weight", {vocabulary.extent(), embed});
  decayed_.push_back(tokens_.id());
  if (gpt2) {
    positions_ = add(graph.state("transformer.wpe.weight", f32, {sequence, embed_}, normal),
                     "transformer.wpe.weight", {sequence.extent(), embed});
    decayed_.push_back(positions_.id());
  }
  for (std::int64_t i = 0; i < options.layers; ++i) {
    Block b;
    const std::string name = fmt::format("{}{}.{}.", prefix, gpt2 ? "h" : "layers", i);
    if (gpt2) {
      b.norm1 = norm(name + "ln_1");
      b.query = affine(name + "attn.c_attn", {embed_}, queries, deviation, 3 * embed, 0);
      b.key = affine(name + "attn.c_attn", {embed_}, keys, deviation, 3 * embed, embed);
      b.value = affine(name + "attn.c_attn", {embed_}, keys, deviation, 3 * embed, 2 * embed);
      b.output = affine(name + "attn.c_proj", queries, {embed_}, residual);
      b.norm2 = norm(name + "ln_2");
      b.up = affine(name + "mlp.c_fc", {embed_}, {hidden_}, deviation);
      b.down = affine(name + "mlp.c_proj", {hidden_}, {embed_}, residual);
    } else {
      b.norm1 = norm(name + "input_layernorm");
      b.query = affine(name + "self_attn.q_proj", {embed_}, queries, deviation);
      b.key = affine(name + "self_attn.k_proj", {embed_}, keys, deviation);
      b.value = affine(name + "self_attn.v_proj", {embed_}, keys, deviation);
      b.output = affine(name + "self_attn.o_proj", queries, {embed_}, residual);
      b.norm2 = norm(name + "post_attention_layernorm");
      b.gate = affine(name + "mlp.gate_proj", {embed_}, {hidden_}, deviation);
      b.up = affine(name + "mlp.up_proj", {embed_}, {hidden_}, deviation);
      b.down = affine(name + "mlp.down_proj", {hidden_}, {embed_}, residual);
    }
    blocks_.push_back(b);
  }
  last_norm_ = norm(gpt2 ? "transformer.ln_f" : "model.norm");
  if (!options.tied) {
    output_ = add(graph.state("lm_head.weight", f32, {vocabulary, embed_}, normal), "lm_head.weight",
                  {vocabulary.extent(), embed});
    decayed_.push_back(output_.id());
  }
}

Tensor Transformer::add(Tensor tensor, const std::string& name, std::vector<std::int64_t> shape,
                        std::int64_t column) {
  places_.push_back({tensor, name, std::move(shape), column});
  return tensor;
}

// GPT-2 stores weights (in, out) and has biases, Llama stores them (out, in) and has none. `columns`: of the matrix in the
// checkpoint that several weights share.
Transformer::Affine Transformer::affine(const std::string& name, const Axes& in, const Axes& out,
                                        double deviation, std::int64_t columns, std::int64_t column) {
  Affine made;
  const bool gpt2 = options_.kind == TransformerOptions::Kind::gpt2;
  const std::string part = columns == 0            ? ""
                           : column == 0           ? ".query"
                           : column == columns / 3 ? ".key"
                                                   : ".value";
  if (columns == 0) columns = product(out);
  const std::vector<std::int64_t> shape =
      gpt2 ? std::vector{product(in), columns} : std::vector{product(out), product(in)};
  made.weight = add(graph_.state(name + part + ".weight", f32, gpt2 ? joined(in, out) : joined(out, in),
                                 Initializer::normal(0, deviation)),
                    name + ".weight", shape, column);
  decayed_.push_back(made.weight.id());
  if (gpt2)
    made.bias = add(graph_.state(name + part + ".bias", f32, out, Initializer::fill(0)), name + ".bias",
                    {columns}, column);
  return made;
}

Transformer::Affine Transformer::norm(const std::string& name) {
  Affine made;
  made.weight = add(graph_.state(name + ".weight", f32, {embed_}, Initializer::fill(1)), name + ".weight",
                    {embed_.extent()});
  if (options_.kind == TransformerOptions::Kind::gpt2)
    made.bias = add(graph_.state(name + ".bias", f32, {embed_}, Initializer::fill(0)), name + ".bias",
                    {embed_.extent()});
  return made;
}

Tensor Transformer::apply_affine(const Affine& layer, const Tensor& x, const Axes& out) const {
  Tensor y = contract(x, cast(layer.weight, x.dtype()), joined({x.axes()[0], x.axes()[1]}, out));
  return layer.bias ? y + cast(layer.bias, x.dtype()) : y;
}

Tensor Transformer::apply_norm(const Affine& layer, const Tensor& x) const {
  Tensor weight = cast(layer.weight, x.dtype());
  return layer.bias ? layer_norm(x, weight, cast(layer.bias, x.dtype()), options_.epsilon)
                    : rms_norm(x, weight, options_.epsilon);
}

Tensor Transformer::attend(const Block& block, const Tensor& x, double drop, const Cache& cache) const {
  Graph::Scope scope(graph_, "attention");
  const bool gpt2 = options_.kind == TransformerOptions::Kind::gpt2;
  const Axes keys{head_, dim_}, queries = gpt2 ? keys : Axes{head_, group_, dim_};
  Tensor q = apply_affine(block.query, x, queries), k = apply_affine(block.key, x, keys),
         v = apply_affine(block.value, x, keys);
  if (!gpt2) {
    const Axis& position = x.axes()[1];
    q = rotary(q, position, options_.rotary_base);
    k = rotary(k, position, options_.rotary_base);
  }
  if (cache.key) {
    write_at(cache.key, k);
    write_at(cache.value, v);
    k = cache.key, v = cache.value;
  }
  Tensor y = attention(q, k, v, {.causal = true, .positioned = bool(cache.key), .dropout = drop});
  return dropout(apply_affine(block.output, y, {embed_}), drop);
}

Tensor Transformer::feed_forward(const Block& block, const Tensor& x, double drop) const {
  Graph::Scope scope(graph_, "mlp");
  Tensor up = apply_affine(block.up, x, {hidden_});
  Tensor h = block.gate.weight ? apply(pointwise::SwiGlu{}, apply_affine(block.gate, x, {hidden_}), up)
                               : apply(pointwise::GeluTanh{}, up);
  return dropout(apply_affine(block.down, h, {embed_}), drop);
}

Tensor Transformer::operator()(const Tensor& tokens, bool training) const {
  graph_.join(tokens.axes().at(1), sequence_, "transformer");
  return through(embed(tokens, positions_), training ? options_.dropout : 0, {});
}

Tensor Transformer::decode(const Tensor& token, const Tensor& place) {
  std::vector<Cache> caches;
  const Axes axes{token.axes().at(0), sequence_, head_, dim_};
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const std::string name = "cache" + std::to_string(i);
    caches.push_back({graph_.state(name + ".key", options_.dtype, axes, Initializer::fill(0)),
                      graph_.state(name + ".value", options_.dtype, axes, Initializer::fill(0))});
  }
  return through(embed(token, positions_ ? embedding(place, positions_) : Tensor()), 0, caches);
}

Tensor Transformer::embed(const Tensor& tokens, const Tensor& positions) const {
  Graph::Scope scope(graph_, "embedding");
  const Tensor x = embedding(tokens, tokens_);
  return positions ? x + positions : x;
}

Tensor Transformer::through(Tensor x, double drop, const std::vector<Cache>& caches) const {
  x = dropout(cast(x, options_.dtype), drop);
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    Graph::Scope scope(graph_, "block" + std::to_string(i));
    x = x + attend(blocks_[i], apply_norm(blocks_[i].norm1, x), drop, caches.empty() ? Cache{} : caches[i]);
    x = x + feed_forward(blocks_[i], apply_norm(blocks_[i].norm2, x), drop);
  }
  Graph::Scope scope(graph_, "output");
  x = apply_norm(last_norm_, x);
  const Tensor& output = output_ ? output_ : tokens_;
  return contract(x, cast(output, x.dtype()), {x.axes()[0], x.axes()[1], vocabulary_});
}

Parameters Transformer::parameters() const {
  Parameters all;
  for (const ParameterPlace& place : places_) all.push_back(place.state);
  return all;
}

bool Transformer::decays(const Tensor& parameter) const {
  return std::ranges::find(decayed_, parameter.id()) != decayed_.end();
}

}  // namespace tegula::layers
