#include "framework/io/idx.hpp"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "framework/io/file.hpp"

namespace tegula::io {

namespace {

constexpr std::size_t max_dimensions = 4;
constexpr std::byte unsigned_byte{0x08};
// deflate codes at most 258 bytes in 2 bits, so no file expands by more than this (zlib's technical notes).
constexpr std::uint64_t max_expansion = 1032;

[[noreturn]] void fail(const std::string& name, const std::string& what) {
  throw std::runtime_error(name + ": " + what);
}

std::string hex(std::span<const std::byte> bytes) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  for (std::byte b : bytes) {
    if (!text.empty()) text += ' ';
    text += digits[std::to_integer<unsigned>(b >> 4)];
    text += digits[std::to_integer<unsigned>(b & std::byte{15})];
  }
  return text;
}

// Where the bytes of the IDX stream come from. Both sources fill `out` as far as they can and return the
// count.
class Plain {
 public:
  Plain(std::span<const std::byte> file, const std::string&) : rest_(file) {}
  std::size_t read(std::span<std::byte> out) {
    std::size_t count = std::min(out.size(), rest_.size());
    if (count > 0) std::memcpy(out.data(), rest_.data(), count);
    rest_ = rest_.subspan(count);
    return count;
  }
  // The most bytes that can still be read: exact here, an upper bound for Gzip.
  std::uint64_t capacity() const { return rest_.size(); }
  std::size_t left_over() const { return rest_.size(); }

 private:
  std::span<const std::byte> rest_;
};

class Gzip {
 public:
  Gzip(std::span<const std::byte> file, std::string name)
      : file_bytes_(file.size()), rest_(file), name_(std::move(name)) {
    if (inflateInit2(&stream_, 16 + MAX_WBITS) != Z_OK) throw std::bad_alloc();  // 16: expect a gzip header
  }
  Gzip(const Gzip&) = delete;
  Gzip& operator=(const Gzip&) = delete;
  ~Gzip() { inflateEnd(&stream_); }

  std::size_t read(std::span<std::byte> out) {
    constexpr std::size_t limit = std::numeric_limits<uInt>::max();  // zlib counts in 32 bits
    std::size_t done = 0;
    while (done < out.size() && !ended_) {
      const std::size_t in_bytes = std::min(rest_.size(), limit),
                        out_bytes = std::min(out.size() - done, limit);
      // zlib does not write through next_in; its C interface of old lacks the const.
      stream_.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(rest_.data()));
      stream_.avail_in = static_cast<uInt>(in_bytes);
      stream_.next_out = reinterpret_cast<Bytef*>(out.data() + done);
      stream_.avail_out = static_cast<uInt>(out_bytes);
      const int status = inflate(&stream_, Z_NO_FLUSH);
      rest_ = rest_.subspan(in_bytes - stream_.avail_in);
      done += out_bytes - stream_.avail_out;
      if (status == Z_STREAM_END) {
        ended_ = true;
      } else if (status == Z_BUF_ERROR || (status == Z_OK && rest_.empty() && stream_.avail_out > 0)) {
        fail(name_, "truncated: the gzip data stop early; copy or install the file again");
      } else if (status != Z_OK) {
        fail(name_, std::string("corrupt gzip data (zlib: ") + (stream_.msg ? stream_.msg : zError(status)) +
                        "); copy or install the file again");
      }
    }
    return done;
  }
  std::uint64_t capacity() const { return ended_ ? 0 : max_expansion * file_bytes_; }
  std::size_t left_over() const { return rest_.size(); }

 private:
  std::size_t file_bytes_;
  std::span<const std::byte> rest_;
  std::string name_;
  z_stream stream_{};
  bool ended_ = false;
};

template <class Source>
IdxArray parse(Source source, const std::string& name, std::size_t dimensions) {
  std::array<std::byte, 4> magic{};
  const std::size_t magic_bytes = source.read(magic);
  const std::array expected{std::byte{0}, std::byte{0}, unsigned_byte, static_cast<std::byte>(dimensions)};
  if (magic_bytes < magic.size() || magic != expected) {
    fail(name, "wrong magic number: starts with \"" + hex(std::span(magic).first(magic_bytes)) +
                   "\", expected \"" + hex(expected) + "\" (IDX of " + std::to_string(dimensions) +
                   "-dimensional unsigned bytes, plain or gzipped); check that it is the right file");
  }

  std::array<std::byte, 4 * max_dimensions> header{};
  if (source.read(std::span(header).first(4 * dimensions)) < 4 * dimensions)
    fail(name, "truncated: ends within its header");
  IdxArray array;
  std::int64_t claimed = 1;
  bool possible = true;  // a product of four 32-bit numbers may need 128 bits
  for (std::size_t d = 0; d < dimensions; ++d) {
    std::int64_t extent = 0;
    for (std::size_t i = 0; i < 4; ++i)
      extent = extent << 8 | std::to_integer<std::int64_t>(header[4 * d + i]);
    array.extents.push_back(extent);
    possible = possible && !__builtin_mul_overflow(claimed, extent, &claimed);
  }
  if (!possible || static_cast<std::uint64_t>(claimed) > source.capacity()) {
    fail(name, "truncated: its header promises " + (possible ? std::to_string(claimed) : "2^63 or more") +
                   " bytes of elements, the file holds at most " + std::to_string(source.capacity()) +
                   "; copy or install it again");
  }

  array.values.resize(static_cast<std::size_t>(claimed));
  const std::size_t count = source.read(std::as_writable_bytes(std::span(array.values)));
  if (count < array.values.size()) {
    fail(name, "truncated: its header promises " + std::to_string(claimed) +
                   " bytes of elements, the file holds " + std::to_string(count) +
                   "; copy or install it again");
  }
  std::array<std::byte, 1> extra{};  // for gzip, this read also verifies the checksum
  if (source.read(extra) > 0 || source.left_over() > 0) {
    fail(name, "trailing bytes after the " + std::to_string(claimed) +
                   " bytes of elements that its header promises; copy or install it again");
  }
  return array;
}

}  // namespace

IdxArray parse_idx(std::span<const std::byte> file, const std::string& name, std::size_t dimensions) {
  if (dimensions < 1 || dimensions > max_dimensions)
    throw std::invalid_argument("parse_idx: 1 to 4 dimensions");
  const bool gzipped = file.size() >= 2 && file[0] == std::byte{0x1f} && file[1] == std::byte{0x8b};
  return gzipped ? parse(Gzip(file, name), name, dimensions) : parse(Plain(file, name), name, dimensions);
}

IdxArray read_idx(const std::filesystem::path& path, std::size_t dimensions) {
  return parse_idx(read_file(path), path.string(), dimensions);
}

}  // namespace tegula::io
