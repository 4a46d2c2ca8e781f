// Text to numbers and back: byte-pair encoding on bytes, as in GPT-2 (Sennrich et al. 2016; Radford et al. 2019), and
// its plainest case, one token per byte. Any bytes can be encoded, UTF-8 or not, and decoding returns exactly them.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "framework/io/pretokenizer.hpp"

namespace tegula::io {

class Tokenizer {
 public:
  static constexpr std::string_view end_of_text_token = "<|endoftext|>";

  // 256 tokens; the id of a token is its byte.
  static Tokenizer bytes();

  // Learns `vocabulary` tokens: the 256 bytes, merges of the most frequent pair within the words of `texts`, of which
  // those with the lowest ids where several are, and <|endoftext|>, which has the last id and is cut out of the texts.
  // The same texts give the same tokenizer. `progress` is called with the number of tokens so far. Throws
  // std::runtime_error if `vocabulary` is below 257 or the texts repeat too little to fill it.
  static Tokenizer train(std::span<const std::string_view> texts, int vocabulary,
                         const std::function<void(int tokens)>& progress = {});

  // `path` is a folder with tokenizer.json or else vocab.json and merges.txt, or a file like tokenizer.json. Knows what
  // the files of GPT-2 and Llama 3 say and refuses files that ask for anything else. What a post-processor puts around a
  // text (Llama's <|begin_of_text|>) is no part of it: encode() adds nothing. Throws std::runtime_error that names the file, the
  // key and the reason.
  static Tokenizer read(const std::filesystem::path& path);
  static Tokenizer parse(std::string_view tokenizer_json, const std::string& name);
  static Tokenizer parse(std::string_view vocab_json, const std::string& vocab_name,
                         std::string_view merges_txt, const std::string& merges_name);

  // Writes tokenizer.json, vocab.json and merges.txt into `folder`, which must exist, for read() and for Hugging Face's
  // libraries. The latter two can say neither Llama 3's rules nor special tokens but <|endoftext|>: a tokenizer that
  // has them leaves these files out.
  void write(const std::filesystem::path& folder) const;

  // Special tokens that are spelled out in the text become their ids, as in Hugging Face's libraries. Callable from any
  // thread.
  std::vector<std::int32_t> encode(std::string_view text) const;
  // Throws std::out_of_range for ids that are not in [0, size()).
  std::string decode(std::span<const std::int32_t> ids) const;

  int size() const { return static_cast<int>(tokens_.size()); }
  std::string_view token(int id) const { return tokens_.at(static_cast<std::size_t>(id)); }  // its bytes
  std::optional<int> end_of_text() const;  // the id of <|endoftext|>

 private:
  struct Merge {
    std::int32_t left, right, result;
  };
  // A token matched in the text as it stands, before words are cut out: "added" in Hugging Face's terms.
  struct AddedToken {
    std::int32_t id;
    bool special;        // no part of the text that people read
    bool in_vocabulary;  // listed in the vocabulary, too
  };

  struct Rules {  // by default GPT-2's
    WordPattern words;
    bool ignore_merges;  // a word that is a token is not put together from parts
  };

  // Every byte must be a token of its own, and each merge's result must be its parts' bytes.
  Tokenizer(std::vector<std::string> tokens, std::vector<Merge> merges, std::vector<AddedToken> added,
            Rules rules = {});

  class Encoder;
  class Reader;
  // The longest that `text` starts with, or null.
  const AddedToken* added_token_at(std::string_view text) const;

  std::vector<std::string> tokens_;  // by id, in bytes
  std::vector<Merge> merges_;        // by rank: lower ones come first
  std::vector<AddedToken> added_;    // by id
  Rules rules_;
  std::unordered_map<std::string, std::int32_t> whole_words_;  // that ignore_merges looks for
  std::array<std::int32_t, 256> byte_ids_{};
  std::array<std::vector<std::int32_t>, 256> added_by_first_byte_;  // places in added_, longest token first
  std::unordered_map<std::uint64_t, std::int32_t> ranks_;           // of pairs
};

}  // namespace tegula::io
