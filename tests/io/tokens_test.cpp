#include "framework/io/tokens.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "framework/io/file.hpp"
#include "framework/io/shuffle.hpp"
#include "tests/io/temporary_folder.hpp"

namespace tegula::io {
namespace {

using Ids = std::vector<std::int32_t>;

Ids all_of(const TokenFile& file) {
  Ids tokens(static_cast<std::size_t>(file.size()));
  file.copy(0, tokens);
  return tokens;
}

TEST_CASE("tokens are read as they were written, in 2 or 4 bytes") {
  const TemporaryFolder folder;
  for (int vocabulary : {256, 65536, 65537, 2'000'000'000}) {
    Ids tokens;
    for (int i = 0; i < 200'000; ++i) tokens.push_back(static_cast<std::int32_t>(i * 7919LL % vocabulary));
    tokens[0] = vocabulary - 1;
    write_token_file(folder / "t", tokens, vocabulary);
    const TokenFile file = TokenFile::open(folder / "t");
    CHECK(file.vocabulary() == vocabulary);
    CHECK(std::filesystem::file_size(folder / "t") == 32 + 200'000 * (vocabulary <= 65536 ? 2 : 4));
    CHECK(all_of(file) == tokens);
    CHECK(file[0] == vocabulary - 1);
    CHECK(file[199'999] == tokens[199'999]);
    Ids part(3);
    file.copy(1000, part);
    CHECK(part == Ids(tokens.begin() + 1000, tokens.begin() + 1003));
    file.verify();
  }
}

TEST_CASE("the bytes of a token file are those documented") {
  const TemporaryFolder folder;
  write_token_file(folder / "t", Ids{1, 258}, 300);
  using namespace std::string_literals;
  CHECK(contents(folder / "t") == "\x89tegtok\n"s + "\1\0\0\0\2\0\0\0"s + "\2\0\0\0\0\0\0\0"s +
                                      "\x2c\1\0\0"s + "\x6d\xea\xc9\xdc"s + "\1\0\2\1"s);
}

TEST_CASE("a token file outlives its replacement and may be empty") {
  const TemporaryFolder folder;
  write_token_file(folder / "t", Ids{1, 2, 3}, 4);
  TokenFile first = TokenFile::open(folder / "t");
  write_token_file(folder / "t", {}, 4);
  const TokenFile second = TokenFile::open(folder / "t"), moved = std::move(first);
  CHECK(all_of(moved) == Ids{1, 2, 3});
  CHECK(second.size() == 0);
  second.verify();
  CHECK(message_of([&] { (void)second[0]; }) ==
        (folder / "t").string() + ": 1 tokens from 0 on were asked for, of 0");
}

TEST_CASE("reading beyond the tokens is refused") {
  const TemporaryFolder folder;
  write_token_file(folder / "t", Ids{1, 2, 3}, 4);
  const TokenFile file = TokenFile::open(folder / "t");
  Ids two(2), four(4);
  CHECK_THROWS_AS((void)file[-1], std::out_of_range);
  CHECK_THROWS_AS((void)file[3], std::out_of_range);
  CHECK_THROWS_AS(file.copy(2, two), std::out_of_range);
  CHECK_THROWS_AS(file.copy(0, four), std::out_of_range);
  CHECK_THROWS_AS(file.copy(INT64_MAX, two), std::out_of_range);
  file.copy(3, {});
}

TEST_CASE("ids outside of the vocabulary are not written") {
  const TemporaryFolder folder;
  CHECK(message_of([&] {
          write_token_file(folder / "t", Ids{1, 4}, 4);
        }) == "[token file] token 1 has the id 4, which a vocabulary of 4 does not have");
  CHECK_THROWS_AS(write_token_file(folder / "t", Ids{-1}, 4), std::invalid_argument);
  CHECK(!std::filesystem::exists(folder / "t"));
}

TEST_CASE("damaged token files are refused") {
  const TemporaryFolder folder;
  write_token_file(folder / "good", Ids{1, 2, 3}, 4);
  const std::string good = contents(folder / "good"), name = (folder / "bad").string();
  const auto refusal = [&](const std::string& bytes) {
    write_file(name, bytes);
    return message_of([&] { TokenFile::open(name).verify(); });
  };
  const auto with = [&](std::size_t at, std::uint32_t value) {
    std::string bytes = good;
    std::memcpy(bytes.data() + at, &value, 4);
    return refusal(bytes);
  };
  const std::string begin = name + ": not a valid token file: ", end = "; prepare the text again";
  CHECK(refusal(good).empty());
  CHECK(refusal("") == begin + "it has 0 bytes, fewer than the 32 of a header" + end);
  CHECK(with(0, 7) == begin + "it does not start as one" + end);
  CHECK(with(8, 2) == begin + "it has version 2, this program reads version 1" + end);
  CHECK(with(12, 4) == begin + "4 bytes per token, where a vocabulary of 4 has 2" + end);
  CHECK(with(12, 0) == begin + "0 bytes per token, where a vocabulary of 4 has 2" + end);
  CHECK(with(16, 4) == begin + "it promises 4 tokens of 2 bytes, but 6 bytes follow its header" + end);
  CHECK(with(20, 0x80000000) ==
        begin + "it promises 9223372036854775811 tokens of 2 bytes, but 6 bytes follow its header" + end);
  CHECK(with(24, 0) == begin + "a vocabulary of 0" + end);
  CHECK(with(24, 0xffffffff) == begin + "a vocabulary of 4294967295" + end);
  CHECK(contains(with(28, 0), "its header says 00000000" + end));
  CHECK(contains(with(32, 5), begin + "its checksum is "));
  for (std::size_t bytes = 0; bytes < good.size(); ++bytes)
    CHECK(refusal(good.substr(0, bytes)).starts_with(begin));
  CHECK(refusal(good + "x").starts_with(begin));

  // A vocabulary that is smaller than the ids are: opening does not read them, reading does.
  CHECK(with(24, 3) == begin + "token 2 has the id 3, which a vocabulary of 3 does not have" + end);
  const TokenFile file = TokenFile::open(name);
  CHECK(file[1] == 2);
  CHECK(message_of([&] { (void)file[2]; }) ==
        begin + "token 2 has the id 3, which a vocabulary of 3 does not have" + end);
}

TEST_CASE("what is not a file cannot be mapped") {
  const TemporaryFolder folder;
  CHECK(contains(message_of([&] { TokenFile::open(folder / "none"); }),
                 "cannot read: No such file or directory; check"));
  CHECK(contains(message_of([&] { TokenFile::open(folder.path()); }), "cannot read: not a regular file"));
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK(contains(message_of([&] { TokenFile::open(folder / "pipe"); }), "cannot read: not a regular file"));
}

TEST_CASE("an order is a permutation that depends on seed and epoch, and stays what it was") {
  CHECK(shuffled_order(6, 1, 0) == std::vector<std::int64_t>{5, 2, 1, 0, 4, 3});
  CHECK(shuffled_order(100, 1, 2) != shuffled_order(100, 1, 3));
  CHECK(shuffled_order(100, 1, 2) != shuffled_order(100, 2, 2));
  auto order = shuffled_order(100, 1, 2);
  std::ranges::sort(order);
  for (std::int64_t i = 0; i < 100; ++i) CHECK(order[static_cast<std::size_t>(i)] == i);
  CHECK(shuffled_order(0, 1, 0).empty());
}

TEST_CASE("each epoch has each window once, and batches go on across epochs") {
  const TokenBatches batches(/*tokens=*/5 * 7 + 3, /*length=*/5, /*batch=*/3, /*seed=*/4, "t");
  CHECK(batches.windows() == 7);
  std::vector<std::int64_t> samples;
  for (std::int64_t step = 0; step < 7; ++step)
    for (std::int64_t start : batches.starts(step)) samples.push_back(start);
  REQUIRE(samples.size() == 21);
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    const auto order = shuffled_order(7, 4, static_cast<std::uint32_t>(epoch));
    std::set<std::int64_t> seen;
    for (std::int64_t i = 0; i < 7; ++i) {
      const std::int64_t start = samples[static_cast<std::size_t>(7 * epoch + i)];
      CHECK(start == order[static_cast<std::size_t>(i)] * 5);
      CHECK(start + 5 + 1 <= 38);
      seen.insert(start);
    }
    CHECK(seen.size() == 7);
  }
  CHECK(batches.epochs(7) == 3.0);
}

TEST_CASE("a batch is a function of its step, whoever asks and when") {
  const TokenBatches one(1000, 10, 7, 1, "t"), two(1000, 10, 7, 1, "t"), other(1000, 10, 7, 2, "t");
  std::vector<std::vector<std::int64_t>> forward;
  for (std::int64_t step = 0; step < 100; ++step) forward.push_back(one.starts(step));
  for (std::int64_t step = 99; step >= 0; --step)
    CHECK(two.starts(step) == forward[static_cast<std::size_t>(step)]);
  CHECK(two.start(50, 3) == forward[50][3]);
  CHECK(other.starts(0) != forward[0]);
}

TEST_CASE("files without one window are refused") {
  CHECK(TokenBatches(6, 5, 1, 0, "t").windows() == 1);
  CHECK(message_of([] { TokenBatches(5, 5, 1, 0, "t"); }) ==
        "t: 5 tokens, fewer than the 5 + 1 of one window; give more text or a shorter context");
  CHECK(contains(message_of([] { TokenBatches(0, 5, 1, 0, "t"); }), "t: 0 tokens"));
  CHECK(message_of([] { TokenBatches(10, 5, 0, 0, "t"); }) ==
        "[token batches] a batch of 0 windows of 5 tokens; both must be at least 1");
}

}  // namespace
}  // namespace tegula::io
