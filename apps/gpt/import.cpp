// gpt import: weights in Hugging Face's format become a run that the other commands take.
#include <fmt/format.h>

#include <filesystem>

#include "apps/gpt/commands.hpp"
#include "apps/gpt/model.hpp"
#include "apps/training.hpp"
#include "framework/io/tokenizer.hpp"

namespace tegula::apps {

namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

struct Shape {
  ModelOptions model;
  std::int64_t vocabulary;
};

// What config.json says of GPT2LMHeadModel or LlamaForCausalLM. Throws std::runtime_error for settings that our blocks have
// not.
Shape read_config(const fs::path& file) {
  auto refuse = [&](const std::string& why) { throw std::runtime_error(file.string() + ": " + why); };
  const ordered_json config = ordered_json::parse(io::read_text(file), nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) refuse("is not a JSON object");
  auto number = [&](const char* key) {
    if (!config.contains(key) || !config[key].is_number_integer() || config[key] < 1)
      refuse(fmt::format("\"{}\" is missing or no positive whole number", key));
    return config[key].get<std::int64_t>();
  };
  // null is what Python's None becomes: the default.
  auto value = [&](const ordered_json& object, const char* key, auto otherwise) {
    if (!object.contains(key) || object[key].is_null()) return otherwise;
    const ordered_json& given = object[key];
    if (given.type() != ordered_json(otherwise).type() &&
        !(given.is_number() && ordered_json(otherwise).is_number()))
      refuse(fmt::format("\"{}\" is a {} instead of a {}", key, given.type_name(),
                         ordered_json(otherwise).type_name()));
    return given.get<decltype(otherwise)>();
  };
  auto require = [&](const char* key, const ordered_json& ours) {
    if (config.contains(key) && !config[key].is_null() && config[key] != ours)
      refuse(fmt::format("\"{}\" is {}, only {} is supported", key, config[key].dump(), ours.dump()));
  };
  Shape shape;
  ModelOptions& m = shape.model;
  m.preset = "";
  const std::string type = value(config, "model_type", std::string());
  if (type == "gpt2") {
    m.kind = "gpt2";
    m.layers = number("n_layer");
    m.heads = m.key_value_heads = number("n_head");
    if (number("n_embd") % m.heads != 0) refuse("\"n_head\" does not divide \"n_embd\"");
    m.head_dim = number("n_embd") / m.heads;
    m.hidden =
        config.contains("n_inner") && !config["n_inner"].is_null() ? number("n_inner") : 4 * number("n_embd");
    m.context = number("n_positions");
    m.epsilon = value(config, "layer_norm_epsilon", 1e-5);
    m.untied = !value(config, "tie_word_embeddings", true);
    require("activation_function", "gelu_new");
    require("scale_attn_weights", true);
    require("scale_attn_by_inverse_layer_idx", false);
    require("add_cross_attention", false);
  } else if (type == "llama") {
    m.kind = "llama";
    m.layers = number("num_hidden_layers");
    m.heads = number("num_attention_heads");
    m.key_value_heads = config.contains("num_key_value_heads") ? number("num_key_value_heads") : m.heads;
    m.head_dim = config.contains("head_dim") && !config["head_dim"].is_null()
                     ? number("head_dim")
                     : number("hidden_size") / m.heads;
    if (m.head_dim * m.heads != number("hidden_size")) refuse("heads times head_dim is not \"hidden_size\"");
    m.hidden = number("intermediate_size");
    m.context = number("max_position_embeddings");
    m.epsilon = value(config, "rms_norm_eps", 1e-6);
    m.rotary_base = value(config, "rope_theta", 10000.0);
    // Where transformers 5 has it.
    if (config.contains("rope_parameters") && config["rope_parameters"].is_object()) {
      const ordered_json& rope = config["rope_parameters"];
      m.rotary_base = value(rope, "rope_theta", m.rotary_base);
      if (const std::string kind = value(rope, "rope_type", std::string("default")); kind != "default")
        refuse(
            fmt::format("\"rope_parameters\" has the rope_type \"{}\", only \"default\" is supported", kind));
    }
    m.untied = !value(config, "tie_word_embeddings", false);
    require("hidden_act", "silu");
    require("rope_scaling", nullptr);
    require("attention_bias", false);
    require("mlp_bias", false);
    require("sliding_window", nullptr);
  } else {
    refuse("\"model_type\" is \"" + type + "\"; gpt2 and llama are supported");
  }
  require("quantization_config", nullptr);
  shape.vocabulary = number("vocab_size");
  return shape;
}

// Whether the weights, one file or parts with an index, have a tensor of this name.
bool has_tensor(const fs::path& weights, const std::string& name) {
  fs::path file = weights;
  if (fs::is_directory(weights)) {
    file = weights / "model.safetensors.index.json";
    if (!fs::exists(file)) file = weights / "model.safetensors";
  }
  if (file.extension() != ".json") {
    const io::Safetensors all = io::Safetensors::map(file);
    return std::ranges::any_of(all.tensors(),
                               [&](const io::TensorView& tensor) { return tensor.name == name; });
  }
  return io::parse_weight_map(io::read_text(file), file.string()).contains(name);
}

}  // namespace

int import_weights(int argc, char** argv) {
  PlacementOptions s;
  std::string weights, config, tokenizer, out;
  std::int64_t context = 0;
  io::Options options("gpt import", "Makes a run of a GPT-2 or Llama model in Hugging Face's format.",
                      launched_rank() != 0);
  options.add("weights", &weights, "model.safetensors, or the folder of it or of its parts and their index")
      ->required();
  options.add("model-config", &config, "config.json of the model (default: beside the weights)");
  options.add("tokenizer", &tokenizer, "folder or tokenizer.json (default: beside the weights, else bytes)");
  options.add("context", &context, "tokens of a sequence, for Llama (default: as the model has it)")
      ->check(io::at_least(0));
  options.add("out", &out, "folder of the run")->required()->type_name("DIR");
  s.add_to(options);
  if (auto code = options.parse(argc, argv)) return *code;
  Runtime runtime(argc, argv, s.runtime());

  const fs::path beside = fs::is_directory(weights) ? fs::path(weights) : fs::path(weights).parent_path();
  Shape shape = read_config(config.empty() ? beside / "config.json" : fs::path(config));
  if (context > 0) {
    if (shape.model.kind != "llama")
      throw std::invalid_argument("--context: GPT-2 has a table of positions, its context cannot be changed");
    shape.model.context = context;
  }
  const bool has_tokenizer = fs::exists(beside / "tokenizer.json") || fs::exists(beside / "vocab.json");
  const io::Tokenizer words = !tokenizer.empty() ? io::Tokenizer::read(tokenizer)
                              : has_tokenizer    ? io::Tokenizer::read(beside)
                                                 : io::Tokenizer::bytes();

  LanguageModel net(shape.model, 1, shape.vocabulary, 1);
  Program program = compile(net.graph, s.plan(net.graph, runtime, net.batch), runtime,
                            {.outputs = {net.judged_loss}, .updates = false});
  std::vector<io::CheckpointTensor> tensors = net.weights();
  // GPT2Model without its head, as the first published weights are, has names without the prefix.
  std::vector<io::CheckpointTensor> given = tensors;
  if (shape.model.kind == "gpt2" && !has_tensor(weights, "transformer.wte.weight"))
    for (io::CheckpointTensor& tensor : given)
      tensor.name = tensor.name.substr(std::string("transformer.").size());
  // Llama is published in bf16, whose numbers f32 has all.
  std::vector<std::string> others = io::load_weights(program, given, weights, {.convert = true});
  std::erase_if(others, [](const std::string& name) {  // masks, and the output layer once more
    return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
           name.ends_with("rotary_emb.inv_freq") || name == "lm_head.weight";
  });
  if (!others.empty())
    throw std::runtime_error(weights + ": has a tensor that the model has not: " + others.front());

  io::CheckpointWriter writer(program, tensors, fs::path(out) / "checkpoints", /*keep=*/3,
                              {{"config.json", shape.model.hugging_face(shape.vocabulary)}});
  writer.save(
      0,
      {{"model", shape.model.json()}, {"vocabulary", shape.vocabulary}, {"seed", 1}, {"weights", weights}});
  writer.wait();
  if (runtime.rank() != 0) return 0;
  words.write(out);
  fmt::print("{}: {:.3f} M parameters, vocabulary {}, context {}\n", out,
             static_cast<double>(net.parameters()) * 1e-6, shape.vocabulary, shape.model.context);
  return 0;
}

}  // namespace tegula::apps
