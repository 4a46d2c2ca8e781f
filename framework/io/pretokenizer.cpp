#include "framework/io/pretokenizer.hpp"

#include "framework/io/unicode.hpp"

namespace tegula::io {

namespace {

struct Run {
  std::size_t bytes, last_bytes;  // of the whole run and of its last character
};

// The characters of class `wanted` at the start of `text`.
Run run_of(CharacterClass wanted, std::string_view text) {
  Run run{0, 0};
  while (run.bytes < text.size()) {
    const CodePoint next = decode_utf8(text.substr(run.bytes));
    if (character_class(next.value) != wanted) break;
    run = {run.bytes + next.bytes, next.bytes};
  }
  return run;
}

}  // namespace

std::size_t first_word(std::string_view text) {
  for (std::string_view contraction : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"})
    if (text.starts_with(contraction)) return contraction.size();

  const std::size_t space = text[0] == ' ' && text.size() > 1 ? 1 : 0;
  const std::string_view rest = text.substr(space);
  if (const auto wanted = character_class(decode_utf8(rest).value); wanted != CharacterClass::space)
    return space + run_of(wanted, rest).bytes;

  // \s+(?!\S) leaves the last space before a word to that word, or, by \s+, to itself.
  const Run spaces = run_of(CharacterClass::space, text);
  const bool whole = spaces.bytes == text.size() || spaces.bytes == spaces.last_bytes;
  return whole ? spaces.bytes : spaces.bytes - spaces.last_bytes;
}

}  // namespace tegula::io
