#include "framework/io/pretokenizer.hpp"

#include <algorithm>
#include <array>
#include <limits>

#include "framework/io/unicode.hpp"

namespace tegula::io {

namespace {

struct Run {
  std::size_t bytes, last_bytes;  // of the whole run and of its last character
};

// The characters of class `wanted` at the start of `text`, at most `limit` of them.
Run run_of(CharacterClass wanted, std::string_view text,
           std::size_t limit = std::numeric_limits<std::size_t>::max()) {
  Run run{0, 0};
  for (; run.bytes < text.size() && limit > 0; --limit) {
    const CodePoint next = decode_utf8(text.substr(run.bytes));
    if (character_class(next.value) != wanted) break;
    run = {run.bytes + next.bytes, next.bytes};
  }
  return run;
}

CharacterClass class_at(std::string_view text) { return character_class(decode_utf8(text).value); }

// \s+(?!\S) leaves the last space before a word to that word, or, by \s+, to itself.
std::size_t spaces(std::string_view text) {
  const Run run = run_of(CharacterClass::space, text);
  const bool whole = run.bytes == text.size() || run.bytes == run.last_bytes;
  return whole ? run.bytes : run.bytes - run.last_bytes;
}

constexpr std::array<std::string_view, 7> contractions{"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};

std::size_t first_word_gpt2(std::string_view text) {
  for (std::string_view contraction : contractions)
    if (text.starts_with(contraction)) return contraction.size();
  const std::size_t space = text[0] == ' ' && text.size() > 1 ? 1 : 0;
  const std::string_view rest = text.substr(space);
  const CharacterClass wanted = class_at(rest);
  return wanted == CharacterClass::space ? spaces(text) : space + run_of(wanted, rest).bytes;
}

// (?i:'s|...), where the long s is an s as well; 0 if the text starts with none.
std::size_t any_case_contraction(std::string_view text) {
  if (text[0] != '\'') return 0;
  constexpr std::string_view long_s = "\u017f";
  if (text.substr(1).starts_with(long_s)) return 1 + long_s.size();
  const auto same = [](char given, char lower) { return given == lower || given + ('a' - 'A') == lower; };
  for (std::string_view contraction : contractions)
    if (std::ranges::equal(text.substr(0, contraction.size()), contraction, same)) return contraction.size();
  return 0;
}

std::size_t first_word_llama3(std::string_view text) {
  if (const std::size_t bytes = any_case_contraction(text); bytes != 0) return bytes;
  const CodePoint first = decode_utf8(text);
  const CharacterClass kind = character_class(first.value);
  if (kind == CharacterClass::letter) return run_of(kind, text).bytes;
  if (kind == CharacterClass::number) return run_of(kind, text, 3).bytes;
  const bool newline = first.value == '\r' || first.value == '\n';
  const std::string_view rest = text.substr(first.bytes);
  if (!newline && !rest.empty() && class_at(rest) == CharacterClass::letter)
    return first.bytes + run_of(CharacterClass::letter, rest).bytes;

  const std::size_t space = text[0] == ' ' ? 1 : 0;
  if (const std::size_t others = run_of(CharacterClass::other, text.substr(space)).bytes; others != 0)
    return std::min(text.find_first_not_of("\r\n", space + others), text.size());
  // \s*[\r\n]+ ends with the last of them.
  const std::string_view run = text.substr(0, run_of(CharacterClass::space, text).bytes);
  const std::size_t last = run.find_last_of("\r\n");
  return last == run.npos ? spaces(text) : last + 1;
}

}  // namespace

std::size_t first_word(std::string_view text, WordPattern pattern) {
  return pattern == WordPattern::gpt2 ? first_word_gpt2(text) : first_word_llama3(text);
}

}  // namespace tegula::io
