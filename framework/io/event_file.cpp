#include "framework/io/event_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <string>

namespace tegula::io {

static_assert(std::endian::native == std::endian::little, "event files are little-endian");

namespace fs = std::filesystem;

namespace {

// CRC-32C (Castagnoli), one byte at a time. zlib has the other CRC-32.
constexpr auto crc_table = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0u);
    table[byte] = crc;
  }
  return table;
}();

// Masked as TFRecords are, so that a CRC over data that hold CRCs stays a good one.
std::uint32_t masked_crc(std::string_view bytes) {
  std::uint32_t crc = 0xffffffff;
  for (char c : bytes) crc = crc >> 8 ^ crc_table[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  return std::rotr(~crc, 15) + 0xa282ead8u;
}

template <class T>
void append_raw(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

std::string record(std::string_view bytes) {
  std::string out;
  append_raw(out, std::uint64_t{bytes.size()});
  append_raw(out, masked_crc(out));
  out += bytes;
  append_raw(out, masked_crc(bytes));
  return out;
}

// Fields of a protocol buffer: a key of number and wire type, then the value.
enum WireType : std::uint64_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

void append_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}
void append_key(std::string& out, std::uint64_t field, WireType type) {
  append_varint(out, field << 3 | type);
}
void append_bytes(std::string& out, std::uint64_t field, std::string_view value) {
  append_key(out, field, WireType::bytes);
  append_varint(out, value.size());
  out += value;
}

std::chrono::duration<double> unix_time() { return std::chrono::system_clock::now().time_since_epoch(); }

std::string event(std::int64_t step) {
  std::string out;
  append_key(out, 1, WireType::fixed64);  // wall_time
  append_raw(out, unix_time().count());
  if (step == 0) return out;  // the default, which protocol buffers leave out
  append_key(out, 2, WireType::varint);
  append_varint(out, static_cast<std::uint64_t>(step));
  return out;
}

fs::path fresh_name(const fs::path& folder) {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) < 0) host = {'h', 'o', 's', 't'};
  const std::string name =
      fmt::format("events.out.tfevents.{}.{}.{}", static_cast<std::int64_t>(unix_time().count()), host.data(),
                  ::getpid());
  fs::path path = folder / name;
  for (int i = 1; fs::exists(path); ++i) path = folder / fmt::format("{}.{}", name, i);
  return path;
}

}  // namespace

EventFile::EventFile(const fs::path& folder) : OutputFile(fresh_name(folder), O_APPEND | O_EXCL) {
  std::string out = event(0);
  append_bytes(out, 3, "brain.Event:2");  // file_version
  write(record(out));
}

void EventFile::add(std::int64_t step, std::span<const Scalar> scalars) {
  std::string summary;
  for (const Scalar& scalar : scalars) {
    std::string value;
    append_bytes(value, 1, scalar.tag);
    append_key(value, 2, WireType::fixed32);  // simple_value
    append_raw(value, static_cast<float>(scalar.value));
    append_bytes(summary, 1, value);
  }
  std::string out = event(step);
  append_bytes(out, 5, summary);
  write(record(out));
}

}  // namespace tegula::io
