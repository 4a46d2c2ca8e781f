// Decoder-only transformers: GPT-2 and Llama, from the same parts. Parameters have the names and the order of elements of
// Hugging Face's models, so that files are exchanged without conversion.
#pragma once

#include <string>
#include <vector>

#include "layers/layers.hpp"

namespace tegula::layers {

struct TransformerOptions {
  enum class Kind : std::uint8_t { gpt2, llama } kind = Kind::gpt2;
  std::int64_t layers = 4, heads = 4, key_value_heads = 4;  // fewer key-value heads: grouped-query attention
  std::int64_t head_dim = 64, hidden = 1024;                // hidden: of the feed-forward part
  double dropout =
      0;  // of the embedding, of attention's probabilities and of what is added to the residual stream
  double epsilon = 1e-5, rotary_base = 10000;
  bool tied = true;   // the output layer is the embedding
  DType dtype = f32;  // of activations; parameters are f32 and rounded where they are used
};

// Where a parameter lives in a checkpoint: in columns [column, column + own columns) of tensor `name`, seen as a matrix of
// shape.back() columns.
struct ParameterPlace {
  Tensor state;
  std::string name;
  std::vector<std::int64_t> shape;
  std::int64_t column = 0;
};

// logits (batch, sequence, vocabulary) of token ids (batch, sequence) i32. The axes it makes are called embed, head, group
// (query heads per key-value head, Llama), dim and hidden.
class Transformer {
 public:
  // Throws std::invalid_argument for heads that key-value heads do not divide, GPT-2 with grouped queries, and the like.
  Transformer(Graph& graph, const TransformerOptions& options, Axis sequence, Axis vocabulary);
  Tensor operator()(const Tensor& tokens, bool training = false) const;  // training: with dropout

  // The same for one new token per sequence, from the keys and values of those before, which are kept in states made here:
  // token and place (batch, 1) i32, place being its position. Call it once; runs take the scalar "position", too.
  Tensor decode(const Tensor& token, const Tensor& place);

  Parameters parameters() const;
  // Those that weight decay is for: matrices, not biases nor the weights of norms.
  bool decays(const Tensor& parameter) const;
  const std::vector<ParameterPlace>& places() const { return places_; }

 private:
  struct Affine {
    Tensor weight, bias;  // bias: none in Llama
  };
  struct Cache {
    Tensor key, value;
  };
  struct Block {
    Affine norm1, query, key, value, output, norm2, up, gate, down;  // gate: Llama's
  };
  Affine affine(const std::string& name, const Axes& in, const Axes& out, double deviation,
                std::int64_t columns = 0, std::int64_t column = 0);
  Affine norm(const std::string& name);
  Tensor add(Tensor tensor, const std::string& name, std::vector<std::int64_t> shape,
             std::int64_t column = 0);
  Tensor embed(const Tensor& tokens, const Tensor& positions) const;
  Tensor through(Tensor x, double drop, const std::vector<Cache>& caches) const;  // from embeddings to logits
  Tensor apply_affine(const Affine& layer, const Tensor& x, const Axes& out) const;
  Tensor apply_norm(const Affine& layer, const Tensor& x) const;
  Tensor attend(const Block& block, const Tensor& x, double drop, const Cache& cache) const;
  Tensor feed_forward(const Block& block, const Tensor& x, double drop) const;

  Graph& graph_;
  TransformerOptions options_;
  Axis sequence_, vocabulary_, embed_, head_, group_, dim_, hidden_;
  Tensor tokens_, positions_, output_;  // embeddings (positions: GPT-2's); output: none where tied
  std::vector<Block> blocks_;
  Affine last_norm_;
  std::vector<ParameterPlace> places_;
  std::vector<int> decayed_;
};

}  // namespace tegula::layers
