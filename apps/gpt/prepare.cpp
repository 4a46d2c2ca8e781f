// gpt prepare and gpt tokenizer: text files become token files with a tokenizer beside them.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "apps/gpt/commands.hpp"
#include "framework/io/file.hpp"
#include "framework/io/options.hpp"
#include "framework/io/prepare_text.hpp"
#include "framework/io/tokenizer.hpp"
#include "framework/runtime/runtime.hpp"

namespace tegula::apps {

namespace {

std::vector<std::filesystem::path> split(const std::string& list) {
  std::vector<std::filesystem::path> paths;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    if (end > begin) paths.emplace_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return paths;
}

}  // namespace

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

  const std::vector<std::filesystem::path> texts = split(text);
  io::TokenizerChoice choice = io::TokensOf{tokenizer};
  if (tokenizer == "bytes") choice = io::ByteTokens{};
  if (tokenizer == "bpe") choice = io::TrainedTokens{static_cast<int>(vocabulary)};
  const io::PreparedText made = io::prepare_text(texts, out, choice, validation,
                                                 [](std::string_view what) { fmt::print("{}\n", what); });
  fmt::print("{}: {} bytes of text, {} tokens to train on and {} to validate with, vocabulary {}\n", out,
             made.text_bytes, made.train_tokens, made.validation_tokens, made.vocabulary);
  return 0;
}

int tokenizer(int argc, char** argv) {
  std::string text, out;
  std::int64_t vocabulary = 4096;
  io::Options options("gpt tokenizer train", "Learns a byte-pair encoding, for gpt prepare --tokenizer DIR.",
                      launched_rank() != 0);
  options.add("text", &text, "text files, separated by commas")->required();
  options.add("vocabulary", &vocabulary, "tokens to learn, the 256 bytes included")->check(io::at_least(257));
  options.add("out", &out, "folder for the tokenizer")->required()->type_name("DIR");
  const bool train = argc > 1 && std::string(argv[1]) == "train";
  if (auto code = options.parse(train ? argc - 1 : argc, train ? argv + 1 : argv)) return *code;
  if (launched_rank() != 0) return 0;
  std::vector<std::string> contents;
  for (const std::filesystem::path& path : split(text)) contents.push_back(io::read_text(path));
  const std::vector<std::string_view> views(contents.begin(), contents.end());
  const io::Tokenizer made = io::Tokenizer::train(views, static_cast<int>(vocabulary));
  io::make_writable_folder(out);
  made.write(out);
  fmt::print("{}: {} tokens\n", out, made.size());
  return 0;
}

}  // namespace tegula::apps
