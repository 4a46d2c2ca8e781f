// libFuzzer target: any files are either a tokenizer, which returns any text as it was and survives being saved and
// read again, or a std::runtime_error. See scripts/fuzz.
#include "framework/io/tokenizer.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>

#include "framework/io/file.hpp"

namespace {

using tegula::io::Tokenizer;
namespace fs = std::filesystem;

const fs::path& folder() {
  static const fs::path path = [] {
    std::string name = (fs::temp_directory_path() / "tegula-fuzz-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    std::atexit([] { fs::remove_all(folder()); });
    return fs::path(name);
  }();
  return path;
}

// The 256 bytes, which a mutation rarely leaves whole.
const std::string& vocabulary_of_bytes() {
  static const std::string json = [] {
    Tokenizer::bytes().write(folder());
    const auto text = tegula::io::read_file(folder() / "vocab.json");
    return std::string(reinterpret_cast<const char*>(text.data()), text.size());
  }();
  return json;
}

}  // namespace

// The first byte says what the rest is.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto parse = [&] {
    switch (data[0] % 5) {
      case 0:  // tokenizer.json
        return Tokenizer::parse(text, "input");
      case 1: {  // more tokens of vocab.json, a zero byte, merges.txt
        const std::size_t end = std::min(text.find('\0'), text.size());
        const std::string& bytes = vocabulary_of_bytes();
        return Tokenizer::parse(bytes.substr(0, bytes.size() - 1) + std::string(text.substr(0, end)) + "}",
                                "vocabulary", text.substr(std::min(end + 1, text.size())), "merges");
      }
      case 2: {  // a part of tokenizer.json: its other half is sound
        auto file = nlohmann::json::parse(
            R"({"pre_tokenizer": {"type": "ByteLevel"}, "decoder": {"type": "ByteLevel"},
                                              "model": {"type": "BPE", "merges": []}})");
        file["model"]["vocab"] = nlohmann::json::parse(vocabulary_of_bytes());
        file.merge_patch(nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false));
        return Tokenizer::parse(file.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), "input");
      }
      case 3: {  // a text, cut as Llama 3 does
        auto file = nlohmann::json::parse(
            R"({"decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "merges": [], "ignore_merges": true},
                "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                  {"type": "Split", "behavior": "Isolated"}, {"type": "ByteLevel", "use_regex": false}]}})");
        file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] =
            tegula::io::expression(tegula::io::WordPattern::llama3);
        file["model"]["vocab"] = nlohmann::json::parse(vocabulary_of_bytes());
        return Tokenizer::parse(file.dump(), "input");
      }
      default:  // a text to learn from
        return Tokenizer::train({&text, 1}, 257 + data[0] / 5);
    }
  };
  try {
    const Tokenizer tokenizer = parse();
    const auto ids = tokenizer.encode(text);
    if (tokenizer.decode(ids) != text) std::abort();
    if (data[0] >= 251) {  // writing takes long
      tokenizer.write(folder());
      try {
        if (Tokenizer::read(folder()).encode(text) != ids) std::abort();
      } catch (const std::runtime_error&) {
        std::abort();
      }
    }
  } catch (const std::runtime_error&) {
  }
  return 0;
}
