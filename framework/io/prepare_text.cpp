#include "framework/io/prepare_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "framework/io/file.hpp"
#include "framework/io/tokenizer.hpp"
#include "framework/io/tokens.hpp"

namespace tegula::io {

namespace fs = std::filesystem;

namespace {

using Report = std::function<void(std::string_view)>;
using Parts = std::vector<std::string_view>;

std::string checked_text(const fs::path& path) {
  if (!fs::exists(path)) throw std::runtime_error(path.string() + ": no such file; check the path");
  if (!fs::is_regular_file(path))
    throw std::runtime_error(path.string() + ": not a regular file; give text files, not folders or devices");
  std::string text = read_text(path);
  if (text.empty()) throw std::runtime_error(path.string() + ": is empty; give a file with text");
  return text;
}

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

// Divides the texts, end to end, `first_bytes` from the start, or up to three bytes later where that is within a
// character.
std::pair<Parts, Parts> divide(const Parts& texts, std::size_t first_bytes) {
  Parts first, second;
  for (std::string_view text : texts) {
    std::size_t cut = std::min(first_bytes, text.size());
    first_bytes -= cut;
    for (int i = 0; i < 3 && cut > 0 && cut < text.size() && continues_character(text[cut]); ++i) ++cut;
    if (cut > 0) first.push_back(text.substr(0, cut));
    if (cut < text.size()) second.push_back(text.substr(cut));
  }
  return {first, second};
}

std::vector<std::int32_t> encode(const Tokenizer& tokenizer, const Parts& parts) {
  std::vector<std::int32_t> tokens;
  for (std::string_view part : parts) {
    if (!tokens.empty() && tokenizer.end_of_text()) tokens.push_back(*tokenizer.end_of_text());
    const std::vector<std::int32_t> more = tokenizer.encode(part);
    tokens.insert(tokens.end(), more.begin(), more.end());
  }
  return tokens;
}

struct MakeTokenizer {
  const Parts& texts;
  const Report& report;

  Tokenizer operator()(const ByteTokens&) const { return Tokenizer::bytes(); }
  Tokenizer operator()(const TokensOf& choice) const { return Tokenizer::read(choice.tokenizer); }
  Tokenizer operator()(const TrainedTokens& choice) const {
    report(fmt::format("training a tokenizer of {} tokens", choice.vocabulary));
    return Tokenizer::train(texts, choice.vocabulary);
  }
};

struct Describe {
  std::string operator()(const ByteTokens&) const { return "bytes"; }
  std::string operator()(const TrainedTokens&) const { return "trained on the training text"; }
  std::string operator()(const TokensOf& choice) const { return choice.tokenizer.string(); }
};

}  // namespace

PreparedText prepare_text(std::span<const fs::path> texts, const fs::path& folder,
                          const TokenizerChoice& choice, double validation_fraction, const Report& report) {
  const Report say = report ? report : [](std::string_view) {};
  if (texts.empty()) throw std::runtime_error("[prepare text] no text files were given");
  if (!(validation_fraction > 0 && validation_fraction < 1))
    throw std::runtime_error(fmt::format(
        "[prepare text] a validation fraction of {}; give one between 0 and 1, as 0.1", validation_fraction));
  nlohmann::ordered_json sources = nlohmann::ordered_json::array();
  std::vector<std::string> contents;
  std::size_t text_bytes = 0;
  for (const fs::path& path : texts) {
    contents.push_back(checked_text(path));
    text_bytes += contents.back().size();
    sources.push_back({{"file", path.string()}, {"bytes", contents.back().size()}});
  }
  const Parts views(contents.begin(), contents.end());
  const auto [train, validation] =
      divide(views, static_cast<std::size_t>((1 - validation_fraction) * static_cast<double>(text_bytes)));
  if (train.empty() || validation.empty())
    throw std::runtime_error(fmt::format(
        "[prepare text] {} bytes of text are too few for a validation fraction of {}; give more text",
        text_bytes, validation_fraction));

  const Tokenizer tokenizer = std::visit(MakeTokenizer{train, say}, choice);
  say(fmt::format("encoding {} bytes", text_bytes));
  const std::vector<std::int32_t> train_tokens = encode(tokenizer, train),
                                  validation_tokens = encode(tokenizer, validation);
  make_writable_folder(folder);
  fs::remove(folder / "meta.json");  // it must not describe files that are being replaced
  tokenizer.write(folder);
  write_token_file(folder / "train.tokens", train_tokens, tokenizer.size());
  write_token_file(folder / "validation.tokens", validation_tokens, tokenizer.size());
  const PreparedText result{static_cast<std::int64_t>(text_bytes),
                            static_cast<std::int64_t>(train_tokens.size()),
                            static_cast<std::int64_t>(validation_tokens.size()), tokenizer.size()};
  const nlohmann::ordered_json meta = {{"tokenizer", std::visit(Describe{}, choice)},
                                       {"vocabulary", result.vocabulary},
                                       {"train_tokens", result.train_tokens},
                                       {"validation_tokens", result.validation_tokens},
                                       {"validation_fraction", validation_fraction},
                                       {"text_bytes", result.text_bytes},
                                       {"sources", std::move(sources)}};
  write_file(folder / "meta.json",
             meta.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n');
  return result;
}

}  // namespace tegula::io
