// Encoded text in files larger than memory, and the order in which training reads it. A file is a header of 32 bytes,
// all numbers little-endian,
//   bytes 0-7    "\x89tegtok\n"
//   bytes 8-11   version, 1
//   bytes 12-15  bytes per token: 2 where the vocabulary has at most 65536 tokens, else 4
//   bytes 16-23  number of tokens
//   bytes 24-27  vocabulary: ids are below it
//   bytes 28-31  CRC-32 (zlib's) of the rest
// and the ids.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "framework/io/file.hpp"

namespace tegula::io {

// A mapped file of tokens. Callable from any thread.
class TokenFile {
 public:
  // Checks header and size, but reads no tokens, so that opening takes no time: verify() does for all of them, and
  // reading does for those that it returns. Throws std::runtime_error naming the file.
  static TokenFile open(const std::filesystem::path& path);

  std::int64_t size() const { return size_; }
  int vocabulary() const { return vocabulary_; }

  // Throw std::out_of_range outside of [0, size()), std::runtime_error for an id that is not below the vocabulary.
  std::int32_t operator[](std::int64_t i) const;
  void copy(std::int64_t begin, std::span<std::int32_t> to) const;

  // Throws std::runtime_error if the checksum or an id is wrong.
  void verify() const;

 private:
  TokenFile(std::string name, MappedFile file) : name_(std::move(name)), file_(std::move(file)) {}

  std::string name_;
  MappedFile file_;
  std::span<const std::byte> data_;
  std::int64_t size_ = 0;
  int vocabulary_ = 0;
  std::uint32_t bytes_per_token_ = 0, checksum_ = 0;
};

// Replaces `path` as a whole. Throws std::invalid_argument for an id outside of [0, vocabulary), std::runtime_error if
// writing fails.
void write_token_file(const std::filesystem::path& path, std::span<const std::int32_t> tokens,
                      int vocabulary);

// Which tokens a step trains on. Window w is the length + 1 tokens from w length on: inputs are the first `length`,
// targets the last, so that each token but the first is a target once per epoch. An epoch is all windows in an order of
// its own. Row r of step s is window s batch + r of the epochs end to end, so that a batch may hold the end of one and
// the beginning of the next, and a run resumes from the number of its step alone.
class TokenBatches {
 public:
  // `tokens` is the size of the file. Throws std::runtime_error starting with `name` if it has no window.
  TokenBatches(std::int64_t tokens, std::int64_t length, std::int64_t batch, std::uint64_t seed,
               const std::string& name);

  std::int64_t windows() const { return windows_; }  // per epoch
  std::int64_t length() const { return length_; }
  std::int64_t batch() const { return batch_; }
  // The epochs that steps 0, ..., step - 1 have read.
  double epochs(std::int64_t step) const;

  // Where the windows of the batch start. Callable from any thread; takes long only for the first step of an epoch.
  std::vector<std::int64_t> starts(std::int64_t step) const;
  std::int64_t start(std::int64_t step, std::int64_t row) const;

 private:
  using Order = std::shared_ptr<const std::vector<std::int64_t>>;
  struct Orders {
    std::mutex mutex;
    std::array<std::int64_t, 2> epoch = {-1, -1};  // the last even and the last odd one asked for
    std::array<Order, 2> order;
  };
  Order order(std::int64_t epoch) const;

  std::int64_t length_, batch_, windows_;
  std::uint64_t seed_;
  std::shared_ptr<Orders> known_ = std::make_shared<Orders>();
};

}  // namespace tegula::io
