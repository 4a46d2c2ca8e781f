// As much of Unicode as tokenizers need: UTF-8 and three classes of code points. Text from the web holds bytes that are
// not UTF-8; they are kept, each as a code point of no class.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tegula::io {

struct CodePoint {
  static constexpr char32_t invalid = 0xffffffff;
  char32_t value;     // or `invalid`
  std::size_t bytes;  // that encode it; 1 where they are not UTF-8
};

// The first code point of `text`, which is not empty. Overlong forms, surrogates and values above U+10FFFF are invalid.
CodePoint decode_utf8(std::string_view text);
void append_utf8(std::string& text, char32_t code_point);

// Space: the property White_Space, \s of regular expressions. Letter, number: the general categories L* and N*.
enum class CharacterClass { space, letter, number, other };
CharacterClass character_class(char32_t code_point);

}  // namespace tegula::io
