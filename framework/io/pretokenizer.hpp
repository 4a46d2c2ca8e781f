// The words within which byte-pair encoding merges, as GPT-2 cuts them out (Radford et al. 2019). Its pattern
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// is scanned by hand: std::regex knows no Unicode and recurses once per character.
#pragma once

#include <cstddef>
#include <string_view>

namespace tegula::io {

// Bytes of the first word of `text`, which is not empty. Bytes that are not UTF-8 count as punctuation. The words of a
// text are the text, end to end.
std::size_t first_word(std::string_view text);

}  // namespace tegula::io
