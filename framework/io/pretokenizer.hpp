// The words within which byte-pair encoding merges, as the regular expressions of GPT-2 (Radford et al. 2019) and of Llama 3
// (Grattafiori et al. 2024) cut them out. They are scanned by hand: std::regex knows no Unicode and recurses once per
// character.
#pragma once

#include <cstddef>
#include <string_view>

namespace tegula::io {

enum class WordPattern { gpt2, llama3 };

// The expression, as files of tokenizers spell it.
constexpr std::string_view expression(WordPattern pattern) {
  return pattern == WordPattern::gpt2
             ? R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"
             : R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
               R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
}

// Bytes of the first word of `text`, which is not empty. Bytes that are not UTF-8 count as punctuation. The words of a
// text are the text, end to end.
std::size_t first_word(std::string_view text, WordPattern pattern = WordPattern::gpt2);

}  // namespace tegula::io
