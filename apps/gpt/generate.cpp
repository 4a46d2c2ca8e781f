// gpt generate: text from a trained model, a token at a time.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "apps/gpt/commands.hpp"
#include "apps/gpt/trained.hpp"
#include "framework/io/tokenizer.hpp"
#include "kernels/philox.hpp"

namespace tegula::apps {

namespace {

// The token drawn from the logits: the most likely one where temperature is 0, else at random among the top_k most likely
// (0: all) that, from the top, make up a probability of top_p.
int draw(std::vector<double> logits, double temperature, std::int64_t top_k, double top_p, double uniform) {
  if (!std::ranges::all_of(logits, [](double logit) { return std::isfinite(logit); }))
    throw std::runtime_error(
        "the model's logits are not finite; use a checkpoint from before the training went astray");
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

int generate(int argc, char** argv) {
  TrainedOptions s;
  std::string prompt = "\n";
  std::int64_t count = 200, top_k = 0, seed = 1;
  double temperature = 0.8, top_p = 1;
  io::Options options("gpt generate", "Continues a text with a trained model.", launched_rank() != 0);
  options.add("prompt", &prompt, "beginning of the text")->default_str("newline");
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
  Program program = compile(graph, s.plan(graph, runtime, batch), runtime, {.outputs = {logits}});
  io::load(program, checkpoint_tensors(transformer), trained.checkpoint);

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
