#include "framework/io/checkpoint_format.hpp"

#include <doctest/doctest.h>

#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "framework/io/file.hpp"
#include "tests/io/temporary_folder.hpp"

namespace tegula::io {
namespace {

namespace fs = std::filesystem;

std::string state_error(const std::string& text) {
  return message_of([&] { parse_state(text, "s"); });
}

std::string index_error(const std::string& text) {
  return message_of([&] { parse_weight_map(text, "i"); });
}

void make_checkpoint(const fs::path& folder, const std::string& text = "{}") {
  fs::create_directories(folder);
  write_file(folder / "state.json", text);
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

TEST_CASE("a checksum is the sum of those of its parts, and no single change escapes it") {
  std::vector<std::byte> bytes(480);
  std::mt19937 random(1);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  for (std::size_t size : {1, 2, 4, 8}) {
    const std::uint64_t whole = checksum(bytes, size, 0);
    const std::span all(bytes);
    CHECK(checksum(all.subspan(160), size, static_cast<std::int64_t>(160 / size)) +
              checksum(all.first(160), size, 0) ==
          whole);
    CHECK(checksum(bytes, size, 1) != whole);
    for (std::size_t i = 0; i < bytes.size() * 8; ++i) {
      bytes[i / 8] ^= static_cast<std::byte>(1 << i % 8);
      CHECK(checksum(bytes, size, 0) != whole);
      bytes[i / 8] ^= static_cast<std::byte>(1 << i % 8);
    }
    std::vector<std::byte> swapped = bytes;  // two elements that change places
    std::swap_ranges(swapped.begin(), swapped.begin() + static_cast<std::ptrdiff_t>(size),
                     swapped.begin() + 8);
    CHECK(checksum(swapped, size, 0) != whole);
  }
  CHECK(checksum({}, 4, 7) == 0);
  // Written down, for files of today to be read tomorrow.
  const std::vector<std::byte> three{std::byte{1}, std::byte{2}, std::byte{3}};
  CHECK(checksum(three, 1, 0) == 0x9e09f4c4c4b009a6U);
}

TEST_CASE("what state.json says is read back") {
  const CheckpointState state{
      .step = 12,
      .updates = 34,
      .contents = {{"rate", 0.1}, {"list", {1, 2}}},
      .checksums = {{"model", {{"w", 0xfedcba9876543210U}, {"b", 1}}}, {"optimizer", {{"m", 0}}}}};
  const CheckpointState read = parse_state(state_text(state), "s");
  CHECK(read.step == 12);
  CHECK(read.updates == 34);
  CHECK(read.contents == state.contents);
  CHECK(read.checksums == state.checksums);
  CHECK(state_text(read) == state_text(state));
  CHECK(parse_state(state_text({}), "s").checksums.empty());
}

TEST_CASE("what is not a state or an index is refused") {
  const std::string good = state_text({.checksums = {{"model", {{"w", 1}}}}});
  auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    return state_error(text.replace(text.find(from), from.size(), to));
  };
  CHECK(state_error(good).empty());
  for (const char* text : {"", "{", "[]", "{}", R"({"format": 1})"})
    CHECK(contains(state_error(text), "s: not the state of a checkpoint"));
  CHECK(contains(with("\"version\": 1", "\"version\": 2"), "has version 2, this one reads up to 1"));
  CHECK(contains(with("\"version\": 1", "\"version\": -1"), "\"version\" is not an integer >= 0"));
  CHECK(contains(with("\"step\": 0", "\"step\": 0.5"), "\"step\" is not an integer >= 0"));
  CHECK(contains(with("\"updates\": 0", "\"updates\": 18446744073709551615"), "\"updates\" is not"));
  CHECK(contains(with("\"contents\"", "\"content\""), "is missing"));
  CHECK(contains(with("\"0000000000000001\"", "\"1\""), "the checksum of 'w' is not 16 hexadecimal digits"));
  CHECK(contains(with("\"0000000000000001\"", "\"000000000000000g\""), "the checksum of 'w' is not"));
  CHECK(contains(with("\"0000000000000001\"", "1"), "the checksum of 'w' is not"));

  CHECK(parse_weight_map(R"({"weight_map": {"a": "1.safetensors"}})", "i") ==
        std::map<std::string, std::string>{{"a", "1.safetensors"}});
  for (const char* text : {"", "[]", "{}", R"({"weight_map": []})"})
    CHECK(contains(index_error(text), "i: not an index of weights"));
  for (const char* file : {"1", "\"\"", "\"..\"", "\"../x\"", "\"/etc/passwd\"", "\"a\\u0000b\"", "null"})
    CHECK(contains(index_error(R"({"weight_map": {"a": )" + std::string(file) + "}}"),
                   "the file of 'a' is not the name of a file in the same folder"));
}

TEST_CASE("the newest checkpoint is what `latest` names, or the highest complete one") {
  const TemporaryFolder folder;
  CHECK(!newest_checkpoint(folder.path()));
  CHECK(checkpoint_name(100) == "step-00000100");
  CHECK(checkpoint_name(1234567890) == "step-1234567890");
  make_checkpoint(folder / "step-00000002");
  make_checkpoint(folder / "step-99999999");
  make_checkpoint(folder / "step-100000000");
  make_checkpoint(folder / "step-200000000.partial");
  make_checkpoint(folder / "step-300000000.old");
  make_checkpoint(folder / "step-x");
  fs::create_directories(folder / "step-400000000");  // without state.json
  CHECK(newest_checkpoint(folder.path()) == folder / "step-100000000");
  for (const char* latest :
       {"", "step-00000003", "../step-00000002", "step-200000000.partial", "step-400000000"}) {
    write_file(folder / "latest", latest);
    CHECK(newest_checkpoint(folder.path()) == folder / "step-100000000");
  }
  write_file(folder / "latest", "step-00000002\n");
  CHECK(newest_checkpoint(folder.path()) == folder / "step-00000002");
}

TEST_CASE("a folder gets its name in one move, also where that is taken") {
  const TemporaryFolder folder;
  const fs::path complete = folder / "step-00000001", partial = folder / "step-00000001.partial";
  for (const char* text : {"1", "2", "3"}) {
    make_checkpoint(partial, text);
    publish_checkpoint(partial, complete);
    CHECK(contents(complete / "state.json") == text);
    CHECK(names_in(folder.path()) == std::set<std::string>{"step-00000001"});
  }
  CHECK(
      contains(message_of([&] { publish_checkpoint(partial, complete); }), "cannot rename to step-00000001"));
}

TEST_CASE("old checkpoints go, abandoned ones first") {
  const TemporaryFolder folder;
  for (int step : {1, 2, 3, 8, 9}) make_checkpoint(folder / checkpoint_name(step));
  remove_old_checkpoints(folder.path(), 3, 0);
  CHECK(names_in(folder.path()).size() == 5);
  remove_old_checkpoints(folder.path(), 3, 4);
  CHECK(names_in(folder.path()) ==
        std::set<std::string>{"step-00000001", "step-00000002", "step-00000003", "step-00000009"});
  remove_old_checkpoints(folder.path(), 3, 1);
  CHECK(names_in(folder.path()) == std::set<std::string>{"step-00000003"});
}

}  // namespace
}  // namespace tegula::io
