// Learns the merges of a tokenizer. Counts of pairs are kept, not computed anew for each merge, and only the words that
// hold the merged pair are visited: a few megabytes of text take seconds.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <queue>
#include <stdexcept>
#include <unordered_set>
#include <utility>

#include "framework/io/pretokenizer.hpp"
#include "framework/io/tokenizer.hpp"

namespace tegula::io {

namespace {

constexpr int byte_tokens = 256;

using Pair = std::pair<std::int32_t, std::int32_t>;

struct PairHash {
  std::size_t operator()(const Pair& pair) const {
    return std::hash<std::uint64_t>()(std::uint64_t{static_cast<std::uint32_t>(pair.first)} << 32 |
                                      static_cast<std::uint32_t>(pair.second));
  }
};

// A distinct word of the texts.
struct Word {
  std::vector<std::int32_t> symbols;
  std::int64_t count;
};

// In the order of their bytes, so that nothing depends on the order of a hash table.
std::vector<Word> distinct_words(std::span<const std::string_view> texts) {
  std::unordered_map<std::string_view, std::int64_t> counts;
  for (std::string_view text : texts) {
    while (!text.empty()) {
      const std::size_t end = std::min(text.find(Tokenizer::end_of_text_token), text.size());
      for (std::string_view part = text.substr(0, end); !part.empty();) {
        const std::size_t bytes = first_word(part);
        ++counts[part.substr(0, bytes)];
        part.remove_prefix(bytes);
      }
      text.remove_prefix(std::min(end + Tokenizer::end_of_text_token.size(), text.size()));
    }
  }
  std::vector<std::pair<std::string_view, std::int64_t>> sorted(counts.begin(), counts.end());
  std::ranges::sort(sorted);
  std::vector<Word> words;
  words.reserve(sorted.size());
  for (const auto& [text, count] : sorted) {
    Word word{{}, count};
    for (char c : text) word.symbols.push_back(static_cast<unsigned char>(c));
    words.push_back(std::move(word));
  }
  return words;
}

class PairCounts {
 public:
  explicit PairCounts(std::vector<Word> words) : words_(std::move(words)) {
    if (words_.size() > std::numeric_limits<std::uint32_t>::max())
      throw std::runtime_error("[tokenizer] cannot train: more than 2^32 distinct words; give less text");
    for (std::uint32_t w = 0; w < words_.size(); ++w)
      for (std::size_t i = 0; i + 1 < words_[w].symbols.size(); ++i)
        add({words_[w].symbols[i], words_[w].symbols[i + 1]}, w);
    for (const auto& [pair, occurrences] : occurrences_) queue_.push({occurrences.count, pair});
  }

  // The most frequent pair that occurs at least twice. Counts in the queue may be out of date, but only too high.
  std::optional<Pair> most_frequent() {
    while (!queue_.empty()) {
      const auto [count, pair] = queue_.top();
      queue_.pop();
      const auto found = occurrences_.find(pair);
      const std::int64_t now = found == occurrences_.end() ? 0 : found->second.count;
      if (now < 2) continue;
      if (now == count) return pair;
      queue_.push({now, pair});
    }
    return std::nullopt;
  }

  void merge(const Pair& pair, std::int32_t result) {
    const std::vector<std::uint32_t> holders = std::move(occurrences_.at(pair).words);
    created_.clear();
    for (std::uint32_t w : holders) merge(pair, result, w);
    occurrences_.erase(pair);
    for (const Pair& created : created_) queue_.push({occurrences_.at(created).count, created});
  }

 private:
  struct Occurrences {
    std::int64_t count = 0;
    std::vector<std::uint32_t> words;  // that hold the pair, or did
  };
  struct Entry {
    std::int64_t count;
    Pair pair;
    bool operator<(const Entry& other) const {  // the largest comes first
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };

  void add(const Pair& pair, std::uint32_t w) {
    Occurrences& occurrences = occurrences_[pair];
    occurrences.count += words_[w].count;
    if (occurrences.words.empty() || occurrences.words.back() != w) occurrences.words.push_back(w);
  }

  // Pairs of symbols that are not merged stay as they are: only those that touch a merged symbol are counted anew.
  void merge(const Pair& pair, std::int32_t result, std::uint32_t w) {
    const std::vector<std::int32_t> old = std::move(words_[w].symbols);
    std::vector<std::int32_t>& symbols = words_[w].symbols;
    symbols.clear();
    bool before_merged = false;
    for (std::size_t i = 0; i < old.size(); ++i) {
      const bool merged = i + 1 < old.size() && Pair{old[i], old[i + 1]} == pair;
      if (i > 0 && (merged || before_merged)) occurrences_.at({old[i - 1], old[i]}).count -= words_[w].count;
      if (merged) occurrences_.at(pair).count -= words_[w].count;
      symbols.push_back(merged ? result : old[i]);
      if (merged) ++i;
      before_merged = merged;
    }
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      const Pair now{symbols[i], symbols[i + 1]};
      if (now.first != result && now.second != result) continue;
      add(now, w);
      created_.insert(now);
    }
  }

  std::vector<Word> words_;
  std::unordered_map<Pair, Occurrences, PairHash> occurrences_;
  std::priority_queue<Entry> queue_;
  std::unordered_set<Pair, PairHash> created_;  // by the merge in progress
};

}  // namespace

Tokenizer Tokenizer::train(std::span<const std::string_view> texts, int vocabulary,
                           const std::function<void(int tokens)>& progress) {
  if (vocabulary <= byte_tokens)
    throw std::runtime_error(fmt::format(
        "[tokenizer] cannot train a vocabulary of {}: it has at least 257 tokens, the bytes and {}",
        vocabulary, end_of_text_token));
  std::vector<std::string> tokens = bytes().tokens_;
  std::unordered_set<std::string> known(tokens.begin(), tokens.end());
  std::vector<Merge> merges;
  PairCounts pairs(distinct_words(texts));
  while (static_cast<int>(tokens.size()) < vocabulary - 1) {
    const std::optional<Pair> pair = pairs.most_frequent();
    if (!pair)
      throw std::runtime_error(
          fmt::format("[tokenizer] cannot train a vocabulary of {}: the text has no pair left that occurs "
                      "twice after {} tokens; ask "
                      "for at most {}, or give more text",
                      vocabulary, tokens.size() + 1, tokens.size() + 1));
    const auto [left, right] = *pair;
    std::string token = tokens[static_cast<std::size_t>(left)] + tokens[static_cast<std::size_t>(right)];
    // The same bytes by other merges would be a second token of one name, which the files cannot hold.
    if (!known.insert(token).second) continue;
    const auto result = static_cast<std::int32_t>(tokens.size());
    tokens.push_back(std::move(token));
    merges.push_back({left, right, result});
    pairs.merge(*pair, result);
    if (progress) progress(static_cast<int>(tokens.size()));
  }
  const auto last = static_cast<std::int32_t>(tokens.size());
  tokens.emplace_back(end_of_text_token);
  return {std::move(tokens), std::move(merges), {{last, /*special=*/true, /*in_vocabulary=*/true}}};
}

}  // namespace tegula::io
