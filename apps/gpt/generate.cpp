// gpt evaluate and gpt generate: what a trained model is good for.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "apps/gpt/commands.hpp"
#include "apps/gpt/model.hpp"
#include "apps/gpt/windows.hpp"
#include "apps/training.hpp"
#include "framework/io/tokenizer.hpp"
#include "kernels/philox.hpp"

namespace tegula::apps {

namespace {

// A trained model: the folder of a run, or of one of its checkpoints.
struct TrainedOptions : PlacementOptions {
  std::string run;
  void add_to(io::Options& options) {
    options.add("run", &run, "folder of a training run, or one of its checkpoints")
        ->required()
        ->type_name("DIR");
    PlacementOptions::add_to(options);
  }
};

struct Trained {
  std::filesystem::path checkpoint, tokenizer;
  ModelOptions model;
  std::int64_t vocabulary;
  std::uint64_t seed;

  explicit Trained(const std::string& run) : tokenizer(run) {
    checkpoint = run;
    if (!std::filesystem::exists(checkpoint / "state.json")) {
      const auto newest = io::newest_checkpoint(checkpoint / "checkpoints");
      if (!newest)
        throw std::runtime_error(run + ": holds no checkpoint; train first, or give another --run");
      checkpoint = *newest;
    } else {
      tokenizer = checkpoint.parent_path().parent_path();
    }
    const std::filesystem::path file = checkpoint / "state.json";
    const std::vector<std::byte> bytes = io::read_file(file);
    const auto contents =
        io::parse_state({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, file.string()).contents;
    try {
      model = ModelOptions::from(contents.at("model"));
      contents.at("vocabulary").get_to(vocabulary);
      contents.at("seed").get_to(seed);
    } catch (const nlohmann::json::exception& error) {
      throw std::runtime_error(file.string() + ": is not of a gpt training: " + error.what());
    }
  }
};

// The token drawn from the logits: the most likely one where temperature is 0, else at random among the top_k most likely
// (0: all) that, from the top, make up a probability of top_p.
int draw(std::vector<double> logits, double temperature, std::int64_t top_k, double top_p, double uniform) {
  std::vector<int> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int a, int b) { return logits[a] > logits[b]; });
  if (temperature == 0) return order[0];
  if (top_k > 0 && top_k < std::ssize(order)) order.resize(top_k);
  std::vector<double> weight;
  double sum = 0;
  for (int id : order) sum += weight.emplace_back(std::exp((logits[id] - logits[order[0]]) / temperature));
  double kept = 0;
  std::size_t count = 0;
  while (count < weight.size() && (count == 0 || kept < top_p * sum)) kept += weight[count++];
  double left = uniform * kept;
  for (std::size_t i = 0; i < count; ++i)
    if ((left -= weight[i]) < 0) return order[i];
  return order[count - 1];
}

}  // namespace

int evaluate(int argc, char** argv) {
  TrainedOptions s;
  std::string tokens, logits_file;
  std::int64_t batch = 16, batches = 0;
  io::Options options("gpt evaluate", "Mean loss per token of a trained model on a token file.",
                      launched_rank() != 0);
  options.add("tokens", &tokens, "token file, such as validation.tokens")->required()->type_name("FILE");
  options.add("batch", &batch, "sequences at once")->check(io::at_least(1));
  options.add("batches", &batches, "how many (0: all full ones)")->check(io::at_least(0));
  options.add("logits", &logits_file, "write the logits of all windows to this safetensors file")
      ->type_name("FILE");
  s.add_to(options);
  if (auto code = options.parse(argc, argv)) return *code;
  Runtime runtime(argc, argv, s.runtime());
  const Trained trained(s.run);
  const io::TokenFile file = io::TokenFile::open(tokens);
  if (file.vocabulary() != trained.vocabulary)
    throw std::runtime_error(fmt::format("{}: has a vocabulary of {}, the model one of {}", tokens,
                                         file.vocabulary(), trained.vocabulary));
  LanguageModel net(trained.model, batch, trained.vocabulary, trained.seed);
  Program program = compile(net.graph, s.plan(net.graph, runtime, net.batch), runtime,
                            {.outputs = logits_file.empty() ? std::vector{net.judged_loss}
                                                            : std::vector{net.judged_loss, net.logits},
                             .updates = false});
  io::load_weights(program, net.weights(), trained.checkpoint);
  std::vector<float> logits;
  const double loss = mean_loss(program, net, file, batches, runtime, [&](const Result& result) {
    if (logits_file.empty()) return;
    const std::vector<double> values = result.values(net.logits);
    logits.insert(logits.end(), values.begin(), values.end());
  });
  if (runtime.rank() != 0) return 0;
  if (!logits_file.empty()) {
    const std::int64_t row = trained.model.context * trained.vocabulary;
    const io::TensorView view{"logits",
                              f32,
                              {std::ssize(logits) / row, trained.model.context, trained.vocabulary},
                              std::as_bytes(std::span(logits))};
    io::write_safetensors(logits_file, {&view, 1});
  }
  fmt::print("loss {:.4f}, perplexity {:.3f}\n", loss, std::exp(loss));
  return 0;
}

int generate(int argc, char** argv) {
  TrainedOptions s;
  std::string prompt = "\n";
  std::int64_t count = 200, top_k = 0, seed = 1;
  double temperature = 0.8, top_p = 1;
  io::Options options("gpt generate", "Continues a text with a trained model.", launched_rank() != 0);
  options.add("prompt", &prompt, "beginning of the text");
  options.add("tokens", &count, "how many to add")->check(io::at_least(0));
  options.add("temperature", &temperature, "0: always the most likely token")->check(CLI::NonNegativeNumber);
  options.add("top-k", &top_k, "draw among so many of the most likely tokens (0: all)")
      ->check(io::at_least(0));
  options.add("top-p", &top_p, "draw among the most likely tokens that make up this probability")
      ->check(CLI::Range(0.0, 1.0));
  options.add("seed", &seed, "of the draws")->check(io::at_least(0));
  s.add_to(options);
  if (auto code = options.parse(argc, argv)) return *code;
  RuntimeOptions where = s.runtime();
  where.print_table = false;
  Runtime runtime(argc, argv, where);
  const Trained trained(s.run);
  const io::Tokenizer tokenizer = io::Tokenizer::read(trained.tokenizer);
  const std::vector<std::int32_t> given = tokenizer.encode(prompt);
  if (given.empty()) throw std::invalid_argument("--prompt is empty: give the text to go on from");
  const std::int64_t context = trained.model.context;

  Graph graph;
  graph.seed(trained.seed);
  Axis batch = graph.axis("batch", 1), one = graph.axis("one", 1), sequence = graph.axis("sequence", context),
       vocabulary = graph.axis("vocabulary", trained.vocabulary);
  Tensor token = graph.input("token", i32, {batch, one}), place = graph.input("place", i32, {batch, one});
  layers::Transformer transformer(graph, trained.model.transformer(), sequence, vocabulary);
  Tensor logits = cast(transformer.decode(token, place), f32);
  std::vector<io::CheckpointTensor> weights;
  for (const layers::ParameterPlace& p : transformer.places())
    weights.push_back({p.state, "model", p.name, p.shape, p.column});
  Program program = compile(graph, s.plan(graph, runtime, batch), runtime, {.outputs = {logits}});
  io::load_weights(program, weights, trained.checkpoint);

  if (runtime.rank() == 0) fmt::print("{}", prompt);
  // Once the context is full it starts again with its second half, as the cache holds positions, not just tokens.
  std::vector<std::int32_t> text = given;
  std::int64_t cached = 0, first = std::max<std::int64_t>(0, std::ssize(text) - context);
  for (std::int64_t made = 0; made < count; ++made) {
    if (std::ssize(text) - first > context) first += context / 2 + 1, cached = 0;
    Result result;
    for (; first + cached < std::ssize(text); ++cached) {
      program.bind(token, std::vector<std::int32_t>{text[first + cached]});
      program.bind(place, std::vector<std::int32_t>{static_cast<std::int32_t>(cached)});
      result = program.run({{"position", static_cast<double>(cached)}});
    }
    double next = 0;
    if (runtime.rank() == 0) {
      const double uniform = philox_word(static_cast<std::uint64_t>(seed), 0xfffffffeu, 0, made) * 0x1p-32;
      next = draw(result.values(logits), temperature, top_k, top_p, uniform);
    }
    runtime.sum_over_ranks(&next, 1);
    text.push_back(static_cast<std::int32_t>(next));
    if (tokenizer.end_of_text() == text.back()) break;
    if (runtime.rank() == 0) fmt::print("{}", tokenizer.decode(std::span(text).last(1)));
    std::fflush(stdout);
    if (runtime.agree() != 0) break;
  }
  if (runtime.rank() == 0) fmt::print("\n");
  return runtime.signal_received() != 0 ? 128 + runtime.signal_received() : 0;
}

}  // namespace tegula::apps
