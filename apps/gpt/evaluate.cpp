// gpt evaluate: how well a trained model foretells a text.
#include <fmt/format.h>

#include <cmath>

#include "apps/gpt/commands.hpp"
#include "apps/gpt/trained.hpp"
#include "apps/gpt/windows.hpp"

namespace tegula::apps {

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
  const Tokens file = open_tokens(tokens);
  if (file->vocabulary() != trained.vocabulary)
    throw std::runtime_error(fmt::format("{}: has a vocabulary of {}, the model one of {}", tokens,
                                         file->vocabulary(), trained.vocabulary));
  LanguageModel net(trained.model, batch, trained.vocabulary, trained.seed);
  Program program = compile(net.graph, s.plan(net.graph, runtime, net.batch), runtime,
                            {.outputs = logits_file.empty() ? std::vector{net.judged_loss}
                                                            : std::vector{net.judged_loss, net.logits},
                             .updates = false});
  io::load(program, net.weights(), trained.checkpoint);
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

}  // namespace tegula::apps
