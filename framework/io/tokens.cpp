#include "framework/io/tokens.hpp"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <utility>

#include "framework/io/shuffle.hpp"

namespace tegula::io {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

namespace fs = std::filesystem;

namespace {

struct Header {
  std::array<char, 8> magic = {'\x89', 't', 'e', 'g', 't', 'o', 'k', '\n'};
  std::uint32_t version = 1, bytes_per_token = 0;
  std::uint64_t tokens = 0;
  std::uint32_t vocabulary = 0, checksum = 0;
};
static_assert(sizeof(Header) == 32);

constexpr int max_vocabulary_of_two_bytes = 1 << 16;

[[noreturn]] void fail(const std::string& name, const std::string& what) {
  throw std::runtime_error(name + ": not a valid token file: " + what + "; prepare the text again");
}

std::uint32_t extend_checksum(std::uint32_t checksum, std::span<const std::byte> bytes) {
  return static_cast<std::uint32_t>(
      crc32_z(checksum, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

// Calls use(bytes) for chunks of `tokens` as they stand in the file.
template <class Token, class Use>
void for_each_chunk(std::span<const std::int32_t> tokens, Use use) {
  std::vector<Token> chunk;
  for (constexpr std::size_t most = 1 << 16; !tokens.empty(); tokens = tokens.subspan(chunk.size())) {
    chunk.resize(std::min(most, tokens.size()));
    std::ranges::transform(tokens.first(chunk.size()), chunk.begin(),
                           [](std::int32_t id) { return static_cast<Token>(id); });
    use(std::as_bytes(std::span(chunk)));
  }
}

template <class Token>
void write_tokens(const fs::path& path, std::span<const std::int32_t> tokens, int vocabulary) {
  Header header;
  header.bytes_per_token = sizeof(Token);
  header.tokens = tokens.size();
  header.vocabulary = static_cast<std::uint32_t>(vocabulary);
  for_each_chunk<Token>(tokens,
                        [&](auto bytes) { header.checksum = extend_checksum(header.checksum, bytes); });

  AtomicFile file(path);
  file.write(std::as_bytes(std::span(&header, 1)));
  for_each_chunk<Token>(tokens, [&](auto bytes) { file.write(bytes); });
  file.commit();
}

template <class Token>
void read_tokens(std::span<const std::byte> data, std::int64_t begin, std::span<std::int32_t> to) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    Token token;
    std::memcpy(&token, data.data() + (static_cast<std::size_t>(begin) + i) * sizeof token, sizeof token);
    to[i] =
        static_cast<std::int32_t>(token);  // an id of 2^31 or more becomes negative, and is refused as such
  }
}

}  // namespace

void write_token_file(const fs::path& path, std::span<const std::int32_t> tokens, int vocabulary) {
  const auto wrong =
      std::ranges::find_if(tokens, [&](std::int32_t id) { return id < 0 || id >= vocabulary; });
  if (wrong != tokens.end())
    throw std::invalid_argument(
        fmt::format("[token file] token {} has the id {}, which a vocabulary of {} does not have",
                    wrong - tokens.begin(), *wrong, vocabulary));
  if (vocabulary <= max_vocabulary_of_two_bytes)
    write_tokens<std::uint16_t>(path, tokens, vocabulary);
  else
    write_tokens<std::uint32_t>(path, tokens, vocabulary);
}

TokenFile TokenFile::open(const fs::path& path) {
  TokenFile result(path.string(), MappedFile(path));
  const std::span<const std::byte> bytes = result.file_.bytes();
  const std::string& name = result.name_;
  Header header;
  const auto magic = header.magic;
  if (bytes.size() < sizeof header)
    fail(name, fmt::format("it has {} bytes, fewer than the {} of a header", bytes.size(), sizeof header));
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != magic) fail(name, "it does not start as one");
  if (header.version != 1)
    fail(name, fmt::format("it has version {}, this program reads version 1", header.version));
  if (header.vocabulary < 1 || header.vocabulary > std::numeric_limits<std::int32_t>::max())
    fail(name, fmt::format("a vocabulary of {}", header.vocabulary));
  const std::uint32_t expected = header.vocabulary <= max_vocabulary_of_two_bytes ? 2 : 4;
  if (header.bytes_per_token != expected)
    fail(name, fmt::format("{} bytes per token, where a vocabulary of {} has {}", header.bytes_per_token,
                           header.vocabulary, expected));
  const std::size_t rest = bytes.size() - sizeof header;
  if (rest % expected != 0 || header.tokens != rest / expected)
    fail(name, fmt::format("it promises {} tokens of {} bytes, but {} bytes follow its header", header.tokens,
                           expected, rest));

  result.data_ = bytes.subspan(sizeof header);
  result.size_ = static_cast<std::int64_t>(header.tokens);
  result.vocabulary_ = static_cast<int>(header.vocabulary);
  result.bytes_per_token_ = header.bytes_per_token;
  result.checksum_ = header.checksum;
  return result;
}

std::int32_t TokenFile::operator[](std::int64_t i) const {
  std::int32_t token = 0;
  copy(i, {&token, 1});
  return token;
}

void TokenFile::copy(std::int64_t begin, std::span<std::int32_t> to) const {
  const auto count = static_cast<std::int64_t>(to.size());
  if (begin < 0 || count > size_ || begin > size_ - count)
    throw std::out_of_range(
        fmt::format("{}: {} tokens from {} on were asked for, of {}", name_, count, begin, size_));
  if (bytes_per_token_ == 2)
    read_tokens<std::uint16_t>(data_, begin, to);
  else
    read_tokens<std::uint32_t>(data_, begin, to);
  // A kernel looks up a row for each id: a wrong one would be a wild read there.
  const auto wrong = std::ranges::find_if(to, [&](std::int32_t id) { return id < 0 || id >= vocabulary_; });
  if (wrong != to.end())
    fail(name_, fmt::format("token {} has the id {}, which a vocabulary of {} does not have",
                            begin + (wrong - to.begin()), static_cast<std::uint32_t>(*wrong), vocabulary_));
}

void TokenFile::verify() const {
  if (const std::uint32_t checksum = extend_checksum(0, data_); checksum != checksum_)
    fail(name_, fmt::format("its checksum is {:08x}, its header says {:08x}", checksum, checksum_));
  std::vector<std::int32_t> chunk;
  constexpr std::int64_t most = 1 << 16;
  for (std::int64_t begin = 0; begin < size_; begin += most) {
    chunk.resize(static_cast<std::size_t>(std::min(most, size_ - begin)));
    copy(begin, chunk);
  }
}

TokenBatches::TokenBatches(std::int64_t tokens, std::int64_t length, std::int64_t batch, std::uint64_t seed,
                           const std::string& name)
    : length_(length), batch_(batch), windows_(0), seed_(seed) {
  if (length < 1 || batch < 1)
    throw std::invalid_argument(fmt::format(
        "[token batches] a batch of {} windows of {} tokens; both must be at least 1", batch, length));
  windows_ = (tokens - 1) / length;
  if (windows_ < 1)
    throw std::runtime_error(
        fmt::format("{}: {} tokens, fewer than the {} + 1 of one window; give more text or a shorter context",
                    name, tokens, length));
}

double TokenBatches::epochs(std::int64_t step) const {
  return static_cast<double>(step) * static_cast<double>(batch_) / static_cast<double>(windows_);
}

std::vector<std::int64_t> TokenBatches::starts(std::int64_t step) const {
  std::vector<std::int64_t> result;
  for (std::int64_t row = 0; row < batch_; ++row) result.push_back(start(step, row));
  return result;
}

std::int64_t TokenBatches::start(std::int64_t step, std::int64_t row) const {
  assert(step >= 0 && row >= 0 && row < batch_);
  const std::int64_t sample = step * batch_ + row;
  return (*order(sample / windows_))[static_cast<std::size_t>(sample % windows_)] * length_;
}

// Orders of two epochs are kept: a batch may touch both, and steps may be asked for a little out of order.
TokenBatches::Order TokenBatches::order(std::int64_t epoch) const {
  const auto i = static_cast<std::size_t>(epoch % 2);
  const std::lock_guard lock(known_->mutex);
  if (known_->epoch[i] != epoch) {
    known_->order[i] = std::make_shared<const std::vector<std::int64_t>>(
        shuffled_order(windows_, seed_, static_cast<std::uint32_t>(epoch)));
    known_->epoch[i] = epoch;
  }
  return known_->order[i];
}

}  // namespace tegula::io
