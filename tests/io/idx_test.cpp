#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "framework/io/idx.hpp"

#include <doctest/doctest.h>
#include <zlib.h>

#include <cstddef>
#include <string>
#include <vector>

#include "tests/io/temporary_folder.hpp"

namespace tegula::io {
namespace {

using Bytes = std::vector<std::byte>;

Bytes idx(std::vector<std::uint32_t> extents, std::size_t elements) {
  Bytes file{std::byte{0}, std::byte{0}, std::byte{8}, static_cast<std::byte>(extents.size())};
  for (std::uint32_t extent : extents)
    for (int shift = 24; shift >= 0; shift -= 8) file.push_back(static_cast<std::byte>(extent >> shift));
  for (std::size_t i = 0; i < elements; ++i) file.push_back(static_cast<std::byte>(i));
  return file;
}

Bytes gzip(const Bytes& plain) {
  z_stream stream{};
  REQUIRE(deflateInit2(&stream, 9, Z_DEFLATED, 16 + MAX_WBITS, 9, Z_DEFAULT_STRATEGY) == Z_OK);
  Bytes packed(deflateBound(&stream, plain.size()) + 64);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(plain.data()));
  stream.avail_in = static_cast<uInt>(plain.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  REQUIRE(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

std::string error(const Bytes& file, std::size_t dimensions = 3) {
  return message_of([&] { parse_idx(file, "data.idx", dimensions); });
}

TEST_CASE("plain and gzipped files read the same") {
  const Bytes file = idx({2, 3, 4}, 24);
  for (const Bytes& form : {file, gzip(file)}) {
    const IdxArray array = parse_idx(form, "data.idx", 3);
    CHECK(array.extents == std::vector<std::int64_t>{2, 3, 4});
    REQUIRE(array.values.size() == 24);
    CHECK(array.values[23] == 23);
  }
  CHECK(parse_idx(idx({5}, 5), "labels", 1).values == std::vector<std::uint8_t>{0, 1, 2, 3, 4});
  CHECK(parse_idx(gzip(idx({0, 28, 28}, 0)), "none", 3).values.empty());
}

TEST_CASE("wrong magic numbers say what was found and expected") {
  CHECK(error(idx({2, 3}, 6)) ==
        "data.idx: wrong magic number: starts with \"00 00 08 02\", expected \"00 00 08 03\" (IDX of "
        "3-dimensional "
        "unsigned bytes, plain or gzipped); check that it is the right file");
  const Bytes html{std::byte{'<'}, std::byte{'h'}, std::byte{'t'}, std::byte{'m'}, std::byte{'l'}};
  CHECK(contains(error(html), "starts with \"3c 68 74 6d\""));
  CHECK(contains(error({}), "starts with \"\""));
  CHECK(contains(error(gzip(html)), "wrong magic number"));
}

TEST_CASE("every truncation and every addition is an error") {
  const Bytes file = idx({2, 3, 4}, 24), packed = gzip(file);
  for (const Bytes& form : {file, packed}) {
    for (std::size_t length = 0; length < form.size(); ++length)
      CHECK(error({form.begin(), form.begin() + static_cast<std::ptrdiff_t>(length)})
                .starts_with("data.idx: "));
    Bytes longer = form;
    longer.push_back(std::byte{7});
    CHECK(contains(error(longer), "trailing bytes after the 24 bytes"));
  }
  Bytes longer = file;
  longer.push_back(std::byte{7});
  CHECK(contains(error(gzip(longer)), "trailing bytes after the 24 bytes"));
  CHECK(contains(error({file.begin(), file.end() - 1}),
                 "promises 24 bytes of elements, the file holds at most 23"));
  CHECK(contains(error({packed.begin(), packed.end() - 1}), "truncated: the gzip data stop early"));
}

TEST_CASE("corrupt gzip data are found, by the checksum if by nothing else") {
  Bytes packed = gzip(idx({2, 3, 4}, 24));
  packed[packed.size() - 6] ^= std::byte{1};  // within the CRC-32
  CHECK(contains(error(packed), "corrupt gzip data (zlib: incorrect data check)"));
}

TEST_CASE("false sizes and gzip bombs cost no memory") {
  CHECK(contains(error(idx({0xffffffff, 0xffffffff, 0xffffffff}, 9)), "promises 2^63 or more bytes"));
  CHECK(contains(error(idx({0xffffffff, 0xffffffff, 0}, 0)), "promises 2^63 or more"));
  CHECK(contains(error(idx({0xffffffff, 0xffff, 1}, 9)), "the file holds at most 9"));
  CHECK(contains(error(gzip(idx({0xffffffff, 1, 1}, 9))), "truncated: its header promises 4294967295 bytes"));
  CHECK(contains(error(gzip(idx({1, 1, 1}, 10'000'000))),
                 "trailing bytes after the 1 bytes"));  // stops at once
}

TEST_CASE("files are named by their path") {
  const TemporaryFolder folder;
  CHECK(message_of([&] { read_idx(folder / "none", 1); }) ==
        (folder / "none").string() + ": cannot read: No such file or directory; check the path");
  CHECK(contains(message_of([&] { read_idx(folder.path(), 1); }), "not a regular file"));
}

}  // namespace
}  // namespace tegula::io
