// The model of apps/gpt: its options and presets, its graph, and where its states lie in a checkpoint.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <tegula/tegula.hpp>
#include <vector>

#include "framework/io/checkpoint.hpp"

namespace tegula::apps {

struct ModelOptions {
  std::string preset = "tiny", kind = "gpt2", dtype = "f32";
  std::int64_t layers = 4, heads = 4, key_value_heads = 0, head_dim = 32, hidden = 512, context = 128;
  double dropout = 0, epsilon = 1e-5, rotary_base = 10000;
  bool untied = false;

  static inline const std::vector<std::string> presets{"tiny", "tiny-llama", "gpt2-124m", "llama-1b"};

  // Sets everything to what the preset says. Throws std::invalid_argument for a name that is none of `presets`.
  void use(const std::string& name) {
    *this = {};
    preset = name;
    if (name == "tiny-llama") {
      kind = "llama";
      key_value_heads = 2;
      hidden = 384;
    } else if (name == "gpt2-124m") {
      layers = heads = 12;
      head_dim = 64;
      hidden = 3072;
      context = 1024;
    } else if (name == "llama-1b") {
      kind = "llama";
      layers = 16;
      heads = 32;
      key_value_heads = 8;
      head_dim = 64;
      hidden = 8192;
      context = 2048;
      rotary_base = 500000;
    } else if (name != "tiny") {
      throw std::invalid_argument("no preset is called " + name);
    }
  }

  void add_to(io::Options& options) {
    options.add("preset", &preset, "shape to start from")->check(CLI::IsMember(presets));
    options.add("kind", &kind, "blocks as in gpt2 or llama")->check(CLI::IsMember({"gpt2", "llama"}));
    options.add("layers", &layers, "blocks")->check(io::at_least(1));
    options.add("heads", &heads, "query heads")->check(io::at_least(1));
    options
        .add("key-value-heads", &key_value_heads,
             "heads of keys and values, shared by query heads in llama (0: as many as those)")
        ->check(io::at_least(0));
    options.add("head-dim", &head_dim, "elements of a head; heads x head-dim is the width of the model")
        ->check(io::at_least(1));
    options.add("hidden", &hidden, "width of the feed-forward part")->check(io::at_least(1));
    options.add("context", &context, "tokens of a sequence")->check(io::at_least(1));
    options.add("dropout", &dropout, "probability, while training")->check(CLI::Range(0.0, 0.99));
    options.add("epsilon", &epsilon, "of the norms");
    options.add("rotary-base", &rotary_base, "of the rotary embedding (llama)");
    options.add("untied", &untied, "give the output layer weights of its own");
    options.add("dtype", &dtype, "of activations; weights and optimizer stay f32")
        ->check(CLI::IsMember({"f32", "bf16", "f16"}));
  }

  layers::TransformerOptions transformer() const {
    using Kind = layers::TransformerOptions::Kind;
    return {.kind = kind == "llama" ? Kind::llama : Kind::gpt2,
            .layers = layers,
            .heads = heads,
            .key_value_heads = all_key_value_heads(),
            .head_dim = head_dim,
            .hidden = hidden,
            .dropout = dropout,
            .epsilon = epsilon,
            .rotary_base = rotary_base,
            .tied = !untied,
            .dtype = dtype == "bf16"  ? DType::bf16
                     : dtype == "f16" ? DType::f16
                                      : f32};
  }

  std::int64_t all_key_value_heads() const { return key_value_heads == 0 ? heads : key_value_heads; }

  nlohmann::ordered_json json() const {
    return {{"kind", kind},         {"layers", layers},
            {"heads", heads},       {"key_value_heads", all_key_value_heads()},
            {"head_dim", head_dim}, {"hidden", hidden},
            {"context", context},   {"dropout", dropout},
            {"epsilon", epsilon},   {"rotary_base", rotary_base},
            {"untied", untied},     {"dtype", dtype}};
  }
  // The text of config.json, by which Hugging Face's transformers makes a model of the weights beside it.
  std::string hugging_face(std::int64_t vocabulary) const {
    nlohmann::ordered_json config = {{"model_type", kind},
                                     {"vocab_size", vocabulary},
                                     {"tie_word_embeddings", !untied},
                                     {"torch_dtype", "float32"},
                                     // Their defaults are ids of other vocabularies.
                                     {"bos_token_id", nullptr},
                                     {"eos_token_id", nullptr}};
    if (kind == "gpt2")
      config.update({{"architectures", {"GPT2LMHeadModel"}},
                     {"activation_function", "gelu_new"},
                     {"n_layer", layers},
                     {"n_head", heads},
                     {"n_embd", heads * head_dim},
                     {"n_inner", hidden},
                     {"n_positions", context},
                     {"layer_norm_epsilon", epsilon},
                     {"attn_pdrop", dropout},
                     {"embd_pdrop", dropout},
                     {"resid_pdrop", dropout}});
    else
      config.update({{"architectures", {"LlamaForCausalLM"}},
                     {"hidden_act", "silu"},
                     {"num_hidden_layers", layers},
                     {"num_attention_heads", heads},
                     {"num_key_value_heads", all_key_value_heads()},
                     {"hidden_size", heads * head_dim},
                     {"head_dim", head_dim},
                     {"intermediate_size", hidden},
                     {"max_position_embeddings", context},
                     {"rms_norm_eps", epsilon},
                     {"rope_theta", rotary_base}});
    return config.dump(2) + '\n';
  }
  // From json() in a checkpoint; throws what nlohmann::json does where a key is missing.
  static ModelOptions from(const nlohmann::ordered_json& j) {
    ModelOptions o;
    o.preset = "";
    j.at("kind").get_to(o.kind), j.at("layers").get_to(o.layers), j.at("heads").get_to(o.heads);
    j.at("key_value_heads").get_to(o.key_value_heads), j.at("head_dim").get_to(o.head_dim);
    j.at("hidden").get_to(o.hidden), j.at("context").get_to(o.context), j.at("dropout").get_to(o.dropout);
    j.at("epsilon").get_to(o.epsilon), j.at("rotary_base").get_to(o.rotary_base),
        j.at("untied").get_to(o.untied);
    j.at("dtype").get_to(o.dtype);
    return o;
  }
};

inline std::vector<io::CheckpointTensor> checkpoint_tensors(const layers::Transformer& transformer) {
  std::vector<io::CheckpointTensor> all;
  for (const layers::ParameterPlace& place : transformer.places())
    all.push_back({place.state, "model", place.name, place.shape, place.column});
  return all;
}

// The language model: logits and loss of a batch of token sequences, as trained (with dropout) and as judged.
struct LanguageModel {
  Graph graph;
  Axis batch, sequence, vocabulary;
  Tensor tokens, target;  // inputs (batch, sequence) i32
  std::optional<layers::Transformer> transformer;
  Tensor logits, loss, judged_loss;

  LanguageModel(const ModelOptions& options, std::int64_t batch_size, std::int64_t vocabulary_size,
                std::uint64_t seed) {
    graph.seed(seed);
    batch = graph.axis("batch", batch_size);
    sequence = graph.axis("sequence", options.context);
    vocabulary = graph.axis("vocabulary", vocabulary_size);
    tokens = graph.input("tokens", i32, {batch, sequence});
    target = graph.input("target", i32, {batch, sequence});
    transformer.emplace(graph, options.transformer(), sequence, vocabulary);
    logits = cast((*transformer)(tokens), f32);
    judged_loss = layers::cross_entropy(logits, target);
    loss = options.dropout == 0
               ? judged_loss
               : layers::cross_entropy(cast((*transformer)(tokens, /*training=*/true), f32), target);
  }

  std::vector<io::CheckpointTensor> weights() const { return checkpoint_tensors(*transformer); }
  // Weights and the optimizer's moments.
  std::vector<io::CheckpointTensor> states() {
    std::vector<io::CheckpointTensor> all = weights();
    for (int id = 0; id < static_cast<int>(graph.tensors().size()); ++id) {
      Tensor tensor = graph.tensor(id);
      if (tensor.info().kind == TensorInfo::Kind::state &&
          std::ranges::none_of(all, [&](const auto& known) { return known.state == tensor; }))
        all.push_back(io::checkpoint_tensor(tensor, "optimizer"));
    }
    return all;
  }
  std::int64_t parameters() const {
    std::int64_t all = 0;
    for (const Tensor& parameter : transformer->parameters()) all += parameter.elements();
    return all;
  }
};

// The checkpoint that `path` is, or the newest one of the run whose folder it is.
inline std::filesystem::path find_checkpoint(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) throw std::runtime_error(path.string() + ": no such folder");
  if (std::filesystem::exists(path / "state.json")) return path;
  if (const auto newest = io::newest_checkpoint(path / "checkpoints")) return *newest;
  throw std::runtime_error(
      path.string() +
      ": holds no checkpoint; give the folder of a training run, or of one of its checkpoints");
}

}  // namespace tegula::apps
