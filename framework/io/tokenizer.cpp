#include "framework/io/tokenizer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <queue>
#include <stdexcept>
#include <utility>

namespace tegula::io {

namespace {

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}

}  // namespace

// Encodes one text. Words come again and again; a repeated one is copied from where it was encoded first.
class Tokenizer::Encoder {
 public:
  Encoder(const Tokenizer& tokenizer, std::vector<std::int32_t>& ids) : tokenizer_(tokenizer), ids_(ids) {}

  void encode_words(std::string_view text) {
    if (tokenizer_.merges_.empty() && tokenizer_.whole_words_.empty()) {
      for (char c : text) ids_.push_back(byte_id(c));
      return;
    }
    while (!text.empty()) {
      const std::string_view word = text.substr(0, first_word(text, tokenizer_.rules_.words));
      text.remove_prefix(word.size());
      const std::size_t begin = ids_.size();
      if (const auto known = known_.find(word); known != known_.end()) {
        ids_.resize(begin + known->second.count);
        std::copy_n(ids_.data() + known->second.begin, known->second.count, ids_.data() + begin);
        continue;
      }
      if (const auto whole = tokenizer_.whole_words_.find(std::string(word));
          whole != tokenizer_.whole_words_.end())
        ids_.push_back(whole->second);
      else
        encode_word(word);
      if (known_.size() < max_known) known_.emplace(word, Place{begin, ids_.size() - begin});
    }
  }

 private:
  static constexpr std::size_t max_known = 1 << 20;  // some 100 MB
  static constexpr std::int64_t none = -1;
  struct Place {
    std::size_t begin, count;
  };
  struct Symbol {
    std::int32_t id;  // `none` once merged into the symbol before
    std::int64_t previous, next;
  };
  using Candidate = std::pair<std::int32_t, std::int64_t>;  // rank, position of the left symbol

  std::int32_t byte_id(char c) const { return tokenizer_.byte_ids_[static_cast<unsigned char>(c)]; }
  Symbol& at(std::int64_t i) { return symbols_[static_cast<std::size_t>(i)]; }

  // Merges the pair of lowest rank, of those the leftmost, until none is left. The candidates wait in a heap, so that a
  // word of n bytes takes n log n: some texts have no spaces.
  void encode_word(std::string_view word) {
    symbols_.clear();
    for (std::int64_t i = 0; char c : word) {
      symbols_.push_back({byte_id(c), i - 1, i + 1});
      ++i;
    }
    symbols_.back().next = none;
    for (std::int64_t i = 0; i != none; i = at(i).next) add_candidate(i);
    while (!candidates_.empty()) {
      const auto [rank, position] = candidates_.top();
      candidates_.pop();
      merge(tokenizer_.merges_[static_cast<std::size_t>(rank)], position);
    }
    for (std::int64_t i = 0; i != none; i = at(i).next) ids_.push_back(at(i).id);
  }

  void add_candidate(std::int64_t left) {
    if (left == none || at(left).next == none) return;
    const auto found = tokenizer_.ranks_.find(pair_key(at(left).id, at(at(left).next).id));
    if (found != tokenizer_.ranks_.end()) candidates_.emplace(found->second, left);
  }

  void merge(const Merge& merge, std::int64_t position) {
    Symbol& left = at(position);
    if (left.id != merge.left || left.next == none || at(left.next).id != merge.right) return;  // gone since
    Symbol& right = at(left.next);
    left.id = merge.result;
    left.next = right.next;
    right.id = none;
    if (left.next != none) at(left.next).previous = position;
    add_candidate(left.previous);
    add_candidate(position);
  }

  const Tokenizer& tokenizer_;
  std::vector<std::int32_t>& ids_;
  std::unordered_map<std::string_view, Place> known_;
  std::vector<Symbol> symbols_;
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates_;
};

Tokenizer::Tokenizer(std::vector<std::string> tokens, std::vector<Merge> merges,
                     std::vector<AddedToken> added, Rules rules)
    : tokens_(std::move(tokens)), merges_(std::move(merges)), added_(std::move(added)), rules_(rules) {
  std::vector<bool> is_added(tokens_.size());
  for (std::size_t i = 0; i < added_.size(); ++i) {
    const auto id = static_cast<std::size_t>(added_[i].id);
    is_added[id] = true;
    added_by_first_byte_[static_cast<unsigned char>(tokens_[id].at(0))].push_back(
        static_cast<std::int32_t>(i));
  }
  for (auto& places : added_by_first_byte_)
    std::ranges::stable_sort(places, std::greater{}, [&](std::int32_t place) {
      return token(added_[static_cast<std::size_t>(place)].id).size();
    });
  for (std::size_t id = 0; id < tokens_.size(); ++id)
    if (tokens_[id].size() == 1 && !is_added[id])
      byte_ids_[static_cast<unsigned char>(tokens_[id][0])] = static_cast<std::int32_t>(id);
  if (rules_.ignore_merges)
    for (std::size_t id = 0; id < tokens_.size(); ++id)
      if (!is_added[id]) whole_words_.emplace(tokens_[id], static_cast<std::int32_t>(id));
  ranks_.reserve(merges_.size());
  for (std::size_t rank = 0; rank < merges_.size(); ++rank)
    ranks_.emplace(pair_key(merges_[rank].left, merges_[rank].right), static_cast<std::int32_t>(rank));
}

Tokenizer Tokenizer::bytes() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  return {std::move(tokens), {}, {}};
}

const Tokenizer::AddedToken* Tokenizer::added_token_at(std::string_view text) const {
  for (std::int32_t place : added_by_first_byte_[static_cast<unsigned char>(text[0])]) {
    const AddedToken& added = added_[static_cast<std::size_t>(place)];
    if (text.starts_with(token(added.id))) return &added;
  }
  return nullptr;
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> ids;
  Encoder encoder(*this, ids);
  std::size_t begin = 0;
  for (std::size_t i = 0; i < text.size();) {
    const AddedToken* added = added_token_at(text.substr(i));
    if (added == nullptr) {
      ++i;
      continue;
    }
    encoder.encode_words(text.substr(begin, i - begin));
    ids.push_back(added->id);
    begin = i += token(added->id).size();
  }
  encoder.encode_words(text.substr(begin));
  return ids;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  for (std::int32_t id : ids) {
    if (id < 0 || id >= size())
      throw std::out_of_range(
          fmt::format("[tokenizer] cannot decode the id {}: the vocabulary has the ids 0 to {}; was the text "
                      "encoded by another one?",
                      id, size() - 1));
    text += tokens_[static_cast<std::size_t>(id)];
  }
  return text;
}

std::optional<int> Tokenizer::end_of_text() const {
  for (const AddedToken& added : added_)
    if (token(added.id) == end_of_text_token) return added.id;
  return std::nullopt;
}

}  // namespace tegula::io
