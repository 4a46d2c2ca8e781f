#include "framework/io/unicode.hpp"

#include <algorithm>
#include <iterator>
#include <span>

namespace tegula::io {

namespace {

#include "framework/io/unicode_table.inc"

bool is_member(std::span<const char32_t> boundaries, char32_t c) {
  return std::distance(boundaries.begin(), std::ranges::upper_bound(boundaries, c)) % 2 == 1;
}

bool is_space(char32_t c) {
  return (c >= 0x9 && c <= 0xd) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

}  // namespace

CodePoint decode_utf8(std::string_view text) {
  constexpr CodePoint invalid{CodePoint::invalid, 1};
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0x80) return {first, 1};
  const std::size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < bytes) return invalid;
  char32_t value = first & (0x7fu >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if ((byte & 0xc0) != 0x80) return invalid;
    value = value << 6 | (byte & 0x3f);
  }
  const char32_t least = bytes == 4 ? 0x10000 : bytes == 3 ? 0x800 : 0x80;
  if (value < least || value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff)) return invalid;
  return {value, bytes};
}

void append_utf8(std::string& text, char32_t c) {
  const auto add = [&](char32_t byte) { text += static_cast<char>(byte); };
  if (c < 0x80) {
    add(c);
    return;
  }
  if (c < 0x800) {
    add(0xc0 | c >> 6);
  } else {
    if (c < 0x10000) {
      add(0xe0 | c >> 12);
    } else {
      add(0xf0 | c >> 18);
      add(0x80 | (c >> 12 & 0x3f));
    }
    add(0x80 | (c >> 6 & 0x3f));
  }
  add(0x80 | (c & 0x3f));
}

CharacterClass character_class(char32_t c) {
  if (is_space(c)) return CharacterClass::space;
  if (c < 0x80) {  // most of most texts
    if ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') return CharacterClass::letter;
    return c >= '0' && c <= '9' ? CharacterClass::number : CharacterClass::other;
  }
  if (is_member(letters, c)) return CharacterClass::letter;
  if (is_member(numbers, c)) return CharacterClass::number;
  return CharacterClass::other;
}

}  // namespace tegula::io
