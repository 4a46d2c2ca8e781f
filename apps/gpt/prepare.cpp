// gpt prepare: text files become token files with a tokenizer beside them.
#include <fmt/format.h>

#include <filesystem>
#include <vector>

#include "apps/gpt/commands.hpp"
#include "framework/io/options.hpp"
#include "framework/io/prepare_text.hpp"
#include "framework/runtime/runtime.hpp"

namespace tegula::apps {

int prepare(int argc, char** argv) {
  std::string text, out, tokenizer = "bytes";
  std::int64_t vocabulary = 4096;
  double validation = 0.1;
  io::Options options("gpt prepare", "Turns text files into token files to train on and to validate with.",
                      launched_rank() != 0);
  options.add("text", &text, "text files, separated by commas")->required();
  options.add("out", &out, "folder for tokens and tokenizer")->required()->type_name("DIR");
  options.add("tokenizer", &tokenizer,
              "bytes (one token each), bpe (byte-pair encoding learned from the text), or a folder or "
              "tokenizer.json to "
              "use");
  options.add("vocabulary", &vocabulary, "tokens that bpe learns")->check(io::at_least(257));
  options.add("validation", &validation, "share of the text, from its end, that is kept for validation")
      ->check(CLI::Range(0.001, 0.9));
  if (auto code = options.parse(argc, argv)) return *code;
  if (launched_rank() != 0) return 0;

  std::vector<std::filesystem::path> texts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    if (end > begin) texts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  io::TokenizerChoice choice = io::TokensOf{tokenizer};
  if (tokenizer == "bytes") choice = io::ByteTokens{};
  if (tokenizer == "bpe") choice = io::TrainedTokens{static_cast<int>(vocabulary)};
  const io::PreparedText made = io::prepare_text(texts, out, choice, validation,
                                                 [](std::string_view what) { fmt::print("{}\n", what); });
  fmt::print("{}: {} bytes of text, {} tokens to train on and {} to validate with, vocabulary {}\n", out,
             made.text_bytes, made.train_tokens, made.validation_tokens, made.vocabulary);
  return 0;
}

}  // namespace tegula::apps
