#include "framework/io/event_file.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstring>
#include <ctime>
#include <map>
#include <string>
#include <vector>

#include "tests/io/temporary_folder.hpp"

namespace tegula::io {
namespace {

namespace fs = std::filesystem;

// A reader of its own: the checksum bit by bit, the fields in any order.
std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t crc = ~0u;
  for (unsigned char byte : bytes) {
    crc ^= byte;
    for (int i = 0; i < 8; ++i) crc = (crc >> 1) ^ ((crc & 1) * 0x82f63b78u);
  }
  return ~crc;
}
std::uint32_t masked(std::uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8u; }

template <class T>
T take(std::string_view& bytes) {
  REQUIRE(bytes.size() >= sizeof(T));
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.remove_prefix(sizeof value);
  return value;
}
std::string_view take(std::string_view& bytes, std::uint64_t count) {
  REQUIRE(bytes.size() >= count);
  const std::string_view taken = bytes.substr(0, count);
  bytes.remove_prefix(count);
  return taken;
}

std::vector<std::string_view> records(std::string_view file) {
  std::vector<std::string_view> result;
  while (!file.empty()) {
    const std::string_view length = file.substr(0, 8);
    const auto bytes = take<std::uint64_t>(file);
    CHECK(take<std::uint32_t>(file) == masked(crc32c(length)));
    result.push_back(take(file, bytes));
    CHECK(take<std::uint32_t>(file) == masked(crc32c(result.back())));
  }
  return result;
}

std::uint64_t varint(std::string_view& bytes) {
  std::uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = take<unsigned char>(bytes);
    value |= std::uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) return value;
  }
}

// The values of a message by field number, as the bytes they are encoded in; a varint as its 8 bytes.
std::multimap<std::uint64_t, std::string> fields(std::string_view message) {
  std::multimap<std::uint64_t, std::string> result;
  while (!message.empty()) {
    const std::uint64_t key = varint(message);
    std::string value;
    switch (key & 7) {
      case 0: {
        const std::uint64_t number = varint(message);
        value.assign(reinterpret_cast<const char*>(&number), 8);
        break;
      }
      case 1:
        value = take(message, 8);
        break;
      case 2:
        value = take(message, varint(message));
        break;
      case 5:
        value = take(message, 4);
        break;
      default:
        FAIL("unknown wire type");
    }
    result.emplace(key >> 3, value);
  }
  return result;
}

template <class T>
T number(const std::multimap<std::uint64_t, std::string>& message, std::uint64_t field) {
  REQUIRE(message.count(field) == 1);
  std::string_view bytes = message.find(field)->second;
  return take<T>(bytes);
}

TEST_CASE("the reader's checksum is CRC-32C") { CHECK(crc32c("123456789") == 0xe3069283u); }

TEST_CASE("scalars are read back by an independent reader") {
  const TemporaryFolder folder;
  const auto before = static_cast<double>(std::time(nullptr));
  EventFile events(folder.path());
  events.add(0, {{"loss", 1.25}, {"rate/learning", 1e-3}});
  events.add(1'000'000'000'000, {{"loss", -0.5}});
  events.add(-1, {});

  const std::string file = contents(events.path());  // while it is open, as TensorBoard does
  const auto all = records(file);
  REQUIRE(all.size() == 4);
  const auto head = fields(all[0]);
  CHECK(head.find(3)->second == "brain.Event:2");
  const auto wall_time = number<double>(head, 1);
  CHECK(wall_time >= before);
  CHECK(wall_time <= before + 60);

  const auto first = fields(all[1]);
  CHECK(first.count(2) == 0);  // step 0, the default
  CHECK(number<double>(first, 1) >= wall_time);
  std::map<std::string, float> values;
  for (const auto& [field, bytes] : fields(first.find(5)->second)) {
    CHECK(field == 1);
    const auto value = fields(bytes);
    values[value.find(1)->second] = number<float>(value, 2);
  }
  CHECK(values == std::map<std::string, float>{{"loss", 1.25f}, {"rate/learning", 1e-3f}});

  CHECK(number<std::int64_t>(fields(all[2]), 2) == 1'000'000'000'000);
  CHECK(number<std::int64_t>(fields(all[3]), 2) == -1);
}

TEST_CASE("the bytes of a record are TensorFlow's") {
  const TemporaryFolder folder;
  const EventFile events(folder.path());
  const std::string file = contents(events.path());
  CHECK(file.size() == 8 + 4 + 24 + 4);
  CHECK(file.substr(0, 12) ==
        std::string("\x18\0\0\0\0\0\0\0\xa3\x7f\x4b\x22", 12));  // so begins each event file
  CHECK(file.substr(12, 1) == "\x09");                           // field 1, 64 bits
  CHECK(file.substr(21, 15) ==
        "\x1a\x0d"
        "brain.Event:2");  // field 3
}

TEST_CASE("event files have TensorBoard's names, and do not replace each other") {
  const TemporaryFolder folder;
  const EventFile one(folder.path()), two(folder.path());
  CHECK(one.path() != two.path());
  for (const EventFile* file : {&one, &two}) {
    CHECK(file->path().filename().string().starts_with("events.out.tfevents."));
    CHECK(contains(file->path().filename().string(), "." + std::to_string(::getpid())));
    CHECK(records(contents(file->path())).size() == 1);
  }
  CHECK(contains(message_of([&] { EventFile(folder / "none"); }),
                 "cannot write: No such file or directory; check the path"));
}

}  // namespace
}  // namespace tegula::io
