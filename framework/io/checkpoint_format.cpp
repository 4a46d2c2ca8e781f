#include "framework/io/checkpoint_format.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <vector>

#include "framework/io/file.hpp"

namespace tegula::io {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

namespace {

constexpr std::string_view format_name = "tegula checkpoint";
constexpr std::int64_t format_version = 1;
constexpr std::string_view prefix = "step-";

[[noreturn]] void fail(const std::string& name, const std::string& what) {
  throw std::runtime_error(name + ": " + what);
}

// The finaliser of splitmix64 (Steele et al. 2014, https://doi.org/10.1145/2714064.2660195), a permutation of 64 bits.
constexpr std::uint64_t mix(std::uint64_t bits, std::uint64_t index) {
  std::uint64_t x = bits ^ ((index + 1) * 0x9e3779b97f4a7c15U);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

template <class Bits>
std::uint64_t checksum_of(std::span<const std::byte> elements, std::uint64_t first) {
  std::uint64_t sum = 0;
  const std::size_t count = elements.size() / sizeof(Bits);
  for (std::size_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, elements.data() + i * sizeof bits, sizeof bits);
    sum += mix(bits, first + i);
  }
  return sum;
}

// The step in the name of a folder, or nothing.
std::optional<std::int64_t> step_of(std::string_view name) {
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (error != std::errc() || end != name.data() + name.size() || step < 0) return std::nullopt;
  return step;
}

bool is_complete(const fs::path& folder) {
  std::error_code ignored;  // one that cannot be looked at is none to resume from
  return fs::is_regular_file(folder / "state.json", ignored);
}

std::vector<std::pair<std::int64_t, fs::path>> complete_checkpoints(const fs::path& root) {
  std::vector<std::pair<std::int64_t, fs::path>> found;
  std::error_code error;
  for (fs::directory_iterator at(root, error), end; !error && at != end; at.increment(error))
    if (const auto step = step_of(at->path().filename().string()); step && is_complete(at->path()))
      found.emplace_back(*step, at->path());
  if (error && error != std::errc::no_such_file_or_directory)
    throw_file_error(root, "list the folder", error.value());
  std::ranges::sort(found);
  return found;
}

void rename_folder(const fs::path& from, const fs::path& to) {
  if (std::rename(from.c_str(), to.c_str()) < 0)
    throw_file_error(from, "rename to " + to.filename().string(), errno);
}

void remove_folder(const fs::path& folder) {
  std::error_code error;
  fs::remove_all(folder, error);
  if (error) throw_file_error(folder, "remove", error.value());
}

std::int64_t count_of(const ordered_json& json, const char* key, const std::string& name) {
  if (!json.contains(key) || !json[key].is_number_unsigned() || json[key].get<std::uint64_t>() > INT64_MAX)
    fail(name, std::string("\"") + key + "\" is not an integer >= 0");
  return json[key].get<std::int64_t>();
}

}  // namespace

std::uint64_t checksum(std::span<const std::byte> elements, std::size_t element_bytes, std::int64_t first) {
  const auto index = static_cast<std::uint64_t>(first);
  switch (element_bytes) {
    case 1:
      return checksum_of<std::uint8_t>(elements, index);
    case 2:
      return checksum_of<std::uint16_t>(elements, index);
    case 4:
      return checksum_of<std::uint32_t>(elements, index);
    case 8:
      return checksum_of<std::uint64_t>(elements, index);
    default:
      throw std::logic_error("[checksum] elements of " + std::to_string(element_bytes) + " bytes");
  }
}

ordered_json checksums_json(const Checksums& checksums) {
  ordered_json json = ordered_json::object();
  for (const auto& [file, tensors] : checksums)
    for (const auto& [tensor, sum] : tensors) {
      char digits[17];  // JSON's numbers are doubles to many readers
      std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(sum));
      json[file][tensor] = digits;
    }
  return json;
}

Checksums parse_checksums(const ordered_json& json, const std::string& name) {
  if (!json.is_object()) fail(name, "\"checksums\" is not an object");
  Checksums checksums;
  for (const auto& [file, tensors] : json.items()) {
    if (!tensors.is_object()) fail(name, "\"checksums\" of '" + file + "' are not an object");
    for (const auto& [tensor, digits] : tensors.items()) {
      std::uint64_t sum = 0;
      const auto* text = digits.get_ptr<const std::string*>();
      if (!text || text->size() != 16 ||
          std::from_chars(text->data(), text->data() + 16, sum, 16).ptr != text->data() + 16)
        fail(name, "the checksum of '" + tensor + "' is not 16 hexadecimal digits");
      checksums[file][tensor] = sum;
    }
  }
  return checksums;
}

std::string state_text(const CheckpointState& state) {
  const ordered_json json{{"format", format_name},      {"version", format_version},
                          {"step", state.step},         {"updates", state.updates},
                          {"contents", state.contents}, {"checksums", checksums_json(state.checksums)}};
  return json.dump(1) + "\n";
}

CheckpointState parse_state(std::string_view text, const std::string& name) {
  const ordered_json json = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("format") || json["format"] != format_name)
    fail(name, "not the state of a checkpoint: \"format\": \"" + std::string(format_name) + "\" is missing");
  const std::int64_t version = count_of(json, "version", name);
  if (version > format_version)
    fail(name, "written by a newer Tegula: its format has version " + std::to_string(version) +
                   ", this one reads up to " + std::to_string(format_version));
  CheckpointState state{.step = count_of(json, "step", name), .updates = count_of(json, "updates", name)};
  if (!json.contains("contents") || !json.contains("checksums"))
    fail(name, "\"contents\" or \"checksums\" is missing");
  state.contents = json["contents"];
  state.checksums = parse_checksums(json["checksums"], name);
  return state;
}

std::map<std::string, std::string> parse_weight_map(std::string_view text, const std::string& name) {
  const ordered_json json = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object())
    fail(name, "not an index of weights: it has no object \"weight_map\"");
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : json["weight_map"].items()) {
    const auto* text_of = file.get_ptr<const std::string*>();
    if (!text_of || text_of->empty() || *text_of == "." || *text_of == ".." ||
        text_of->find_first_of(std::string("/\0", 2)) != std::string::npos)
      fail(name, "the file of '" + tensor + "' is not the name of a file in the same folder");
    files[tensor] = *text_of;
  }
  return files;
}

std::string checkpoint_name(std::int64_t step) {
  std::string digits = std::to_string(step);
  if (digits.size() < 8)
    digits.insert(0, 8 - digits.size(), '0');  // in the order of the steps when sorted by name
  return std::string(prefix) + digits;
}

std::optional<fs::path> newest_checkpoint(const fs::path& root) {
  std::string name;
  if (std::ifstream file(root / "latest");
      file && std::getline(file, name) && step_of(name) && is_complete(root / name))
    return root / name;
  const auto found = complete_checkpoints(root);
  if (found.empty()) return std::nullopt;
  return found.back().second;
}

void remove_remains(const fs::path& root) {
  std::vector<fs::path> remains;
  std::error_code error;
  for (fs::directory_iterator at(root, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string(), stem = at->path().stem().string(),
                      extension = at->path().extension().string();
    if (((extension == ".partial" || extension == ".old") && step_of(stem)) || name.starts_with("latest.tmp"))
      remains.push_back(at->path());
  }
  if (error) throw_file_error(root, "list the folder", error.value());
  for (const fs::path& path : remains) remove_folder(path);
}

void publish_checkpoint(const fs::path& partial, const fs::path& complete) {
  const fs::path old = complete.string() + ".old";
  bool replaced = false;
  if (std::rename(partial.c_str(), complete.c_str()) < 0) {
    if (errno != ENOTEMPTY && errno != EEXIST)
      throw_file_error(partial, "rename to " + complete.filename().string(), errno);
    replaced = true;
    remove_folder(old);
    // In one move, where the file system knows how: at no moment is there no checkpoint.
    if (::renameat2(AT_FDCWD, partial.c_str(), AT_FDCWD, complete.c_str(), RENAME_EXCHANGE) == 0) {
      rename_folder(partial, old);
    } else {
      rename_folder(complete, old);
      rename_folder(partial, complete);
    }
  }
  flush_folder(complete.parent_path());
  if (replaced) remove_folder(old);
}

void remove_old_checkpoints(const fs::path& root, std::int64_t step, int keep) {
  if (keep <= 0) return;
  auto found = complete_checkpoints(root);
  std::ranges::stable_sort(found, std::greater{}, [&](const auto& checkpoint) {
    return std::pair(checkpoint.first <= step, checkpoint.first);
  });
  for (std::size_t i = static_cast<std::size_t>(keep); i < found.size(); ++i) {
    // Renamed first: half a checkpoint must not look like one.
    const fs::path old = found[i].second.string() + ".old";
    remove_folder(old);
    rename_folder(found[i].second, old);
    remove_folder(old);
  }
}

}  // namespace tegula::io
