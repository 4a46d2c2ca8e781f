// From text files to a folder that a language model trains on: train.tokens, validation.tokens, the tokenizer's files,
// and meta.json, which says what was made of what.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string_view>
#include <variant>

namespace tegula::io {

struct ByteTokens {};
struct TrainedTokens {  // on the training part of the text
  int vocabulary;
};
struct TokensOf {  // an existing tokenizer, see Tokenizer::read
  std::filesystem::path tokenizer;
};
using TokenizerChoice = std::variant<ByteTokens, TrainedTokens, TokensOf>;

struct PreparedText {
  std::int64_t text_bytes, train_tokens, validation_tokens;
  int vocabulary;
};

// The texts follow each other, with the tokenizer's end-of-text token between them if it has one. The last
// `validation_fraction` of their bytes, from the beginning of a character on, is for validation. `report` is told what
// is being done. The folder is made if need be; its meta.json is written last. Throws std::runtime_error, before
// anything is written, if a text is missing, empty or not a regular file, or too short to be divided.
PreparedText prepare_text(std::span<const std::filesystem::path> texts, const std::filesystem::path& folder,
                          const TokenizerChoice& choice, double validation_fraction = 0.1,
                          const std::function<void(std::string_view)>& report = {});

}  // namespace tegula::io
