// The files of a tokenizer: GPT-2's vocab.json and merges.txt, and Hugging Face's tokenizer.json. In them a token is
// text in which each character stands for a byte: printable Latin-1 for itself, U+0100 and up for the rest, in order.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "framework/io/file.hpp"
#include "framework/io/tokenizer.hpp"
#include "framework/io/unicode.hpp"

namespace tegula::io {

namespace fs = std::filesystem;

namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::string_view merges_header = "#version: 0.2\n";

struct ByteAlphabet {
  std::array<char32_t, 256> character{};
  std::map<char32_t, char> byte;

  ByteAlphabet() {
    char32_t next = 0x100;
    for (char32_t b = 0; b < 256; ++b) {
      const bool printable = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
      character[b] = printable ? b : next++;
      byte[character[b]] = static_cast<char>(b);
    }
  }
};

const ByteAlphabet& byte_alphabet() {
  static const ByteAlphabet alphabet;
  return alphabet;
}

std::string to_alphabet(std::string_view bytes) {
  std::string text;
  for (char b : bytes) append_utf8(text, byte_alphabet().character[static_cast<unsigned char>(b)]);
  return text;
}

std::optional<std::string> from_alphabet(std::string_view text) {
  std::string bytes;
  while (!text.empty()) {
    const CodePoint next = decode_utf8(text);
    const auto found = byte_alphabet().byte.find(next.value);
    if (found == byte_alphabet().byte.end()) return std::nullopt;
    bytes += found->second;
    text.remove_prefix(next.bytes);
  }
  return bytes;
}

[[noreturn]] void fail(const std::string& where, const std::string& what) {
  throw std::runtime_error(where + ": " + what);
}

json parse_object(std::string_view text, const std::string& name) {
  json value;
  try {
    value = json::parse(text);
  } catch (const json::parse_error& e) {
    fail(name, fmt::format("not valid JSON from byte {} of {} on; copy or make the file again", e.byte,
                           text.size()));
  }
  if (!value.is_object()) fail(name, "is not a JSON object");
  return value;
}

const json& member(const json& object, const char* key, const std::string& where) {
  if (!object.is_object()) fail(where, "is not a JSON object");
  const auto found = object.find(key);
  if (found == object.end()) fail(where, fmt::format("has no key '{}'", key));
  return *found;
}

// A value as errors quote it. Of arrays and objects the type: they may be so deep that dump() runs out of stack.
std::string quoted(const json& value) {
  if (value.is_structured()) return std::string("an ") + value.type_name();
  std::string text = value.dump();
  return text.size() > 60 ? text.substr(0, 60) + " ..." : text;
}

// A key whose values but the listed ones would change what encode() or decode() do.
void require(const json& object, const char* key, std::initializer_list<json> supported,
             const std::string& where) {
  const auto found = object.find(key);
  if (found == object.end() || std::ranges::find(supported, *found) != supported.end()) return;
  std::vector<std::string> names;
  for (const json& value : supported) names.push_back(value.dump());
  fail(where + key,
       fmt::format("{} is not supported; expected {}", quoted(*found), fmt::join(names, " or ")));
}

void require_type(const json& object, std::initializer_list<json> supported, const std::string& where) {
  member(object, "type", where);
  require(object, "type", supported, where + ".");
}

// The object under a key of a file that cannot do without it.
const json& part(const json& file, const char* key, const std::string& name) {
  const auto found = file.find(key);
  if (found == file.end() || found->is_null())
    fail(name + ": " + key, "is missing; expected {\"type\": \"ByteLevel\"}");
  return *found;
}

// ByteLevel moves offsets only; TemplateProcessing puts tokens around a text, which encode() does not.
void require_post_processor(const json& file, const std::string& name) {
  const auto found = file.find("post_processor");
  if (found == file.end() || found->is_null()) return;
  const std::string where = name + ": post_processor";
  require_type(*found, {"ByteLevel", "TemplateProcessing", "Sequence"}, where);
  if ((*found)["type"] != "Sequence") return;
  const json& processors = member(*found, "processors", where);
  if (!processors.is_array()) fail(where + ".processors", "is not an array");
  for (std::size_t i = 0; i < processors.size(); ++i)
    require_type(processors[i], {"ByteLevel", "TemplateProcessing"},
                 fmt::format("{}.processors[{}]", where, i));
}

// ByteLevel, with GPT-2's expression in it, or a Split by an expression and a ByteLevel that does not cut.
WordPattern read_word_pattern(const json& file, const std::string& name) {
  const json& whole = part(file, "pre_tokenizer", name);
  const std::string where = name + ": pre_tokenizer";
  require_type(whole, {"ByteLevel", "Sequence"}, where);
  const json* bytes = &whole;
  std::string bytes_where = where + ".";
  WordPattern pattern = WordPattern::gpt2;
  if (whole["type"] == "Sequence") {
    const json& steps = member(whole, "pretokenizers", where);
    const std::string list = where + ".pretokenizers";
    if (!steps.is_array() || steps.size() != 2)
      fail(list, "is not supported; expected a Split and a ByteLevel");
    require_type(steps[0], {"Split"}, list + "[0]");
    require_type(steps[1], {"ByteLevel"}, list + "[1]");
    const json& given = member(member(steps[0], "pattern", list + "[0]"), "Regex", list + "[0].pattern");
    if (given == expression(WordPattern::llama3))
      pattern = WordPattern::llama3;
    else if (given != expression(WordPattern::gpt2))
      fail(list + "[0].pattern.Regex",
           quoted(given) + " is not supported; expected that of GPT-2 or Llama 3");
    require(steps[0], "behavior", {"Isolated"}, list + "[0].");
    require(steps[0], "invert", {false}, list + "[0].");
    bytes = &steps[1];
    bytes_where = list + "[1].";
    member(*bytes, "use_regex", list + "[1]");  // true if not said
    require(*bytes, "use_regex", {false}, bytes_where);
  } else {
    require(*bytes, "use_regex", {true}, bytes_where);
  }
  require(*bytes, "add_prefix_space", {false}, bytes_where);
  return pattern;
}

}  // namespace

// Gathers a tokenizer from what the files say.
class Tokenizer::Reader {
 public:
  static std::int32_t parse_id(const json& id, const std::string& where, const std::string& token) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= std::numeric_limits<std::int32_t>::max())
      fail(where, fmt::format("the id of '{}' is not an integer from 0 to 2^31 - 2", token));
    return id.get<std::int32_t>();
  }

  // `vocabulary` maps tokens to ids; `where` names it in errors.
  void read_vocabulary(const json& vocabulary, const std::string& where) {
    if (!vocabulary.is_object()) fail(where, "is not a JSON object of tokens and their ids");
    for (const auto& [key, id] : vocabulary.items()) {
      if (key.empty()) fail(where, "holds an empty token");
      const std::int32_t number = parse_id(id, where, key);
      place(key, number, where);
      ids_.emplace(key, number);
    }
  }

  void add_token(const std::string& content, std::int32_t id, bool special, const std::string& where) {
    if (content.empty()) fail(where, "holds an empty token");
    // Hugging Face's libraries decode it as the bytes that its characters stand for.
    if (const auto bytes = from_alphabet(content); bytes && *bytes != content)
      fail(where, fmt::format("'{}' would be decoded as other bytes; not supported", content));
    const auto listed = ids_.find(content);
    if (listed == ids_.end()) {
      place(content, id, where);
    } else if (listed->second != id) {
      fail(where, fmt::format("'{}' has the id {}, but {} in the vocabulary", content, id, listed->second));
    }
    if (std::ranges::find(added_, id, &AddedToken::id) != added_.end())
      fail(where, fmt::format("'{}' is listed twice", content));
    added_.push_back({id, special, listed != ids_.end()});
  }

  // Merges come in the order of their ranks; `where` says which one this is.
  void add_merge(const std::string& left, const std::string& right, const std::string& where) {
    const auto id = [&](const std::string& token) {
      const auto found = ids_.find(token);
      if (found == ids_.end())
        fail(where,
             fmt::format("merges '{}' and '{}', but '{}' is not in the vocabulary", left, right, token));
      return found->second;
    };
    const Merge merge{id(left), id(right), id(left + right)};
    const auto [known, fresh] = merge_of_pair_.emplace(std::pair(merge.left, merge.right), where);
    if (!fresh)
      fail(where, fmt::format("merges '{}' and '{}', as {} does already", left, right, known->second));
    merges_.push_back(merge);
  }

  bool has(const std::string& token) const { return ids_.contains(token); }
  std::int32_t id_of(const std::string& token) const { return ids_.at(token); }

  Tokenizer finish(const std::string& where, Rules rules = {}) {
    std::ranges::sort(added_, {}, &AddedToken::id);
    std::vector<std::string> tokens;
    std::array<bool, 256> has_byte{};
    for (const auto& [id, text] : tokens_) {
      const auto expected = static_cast<std::int32_t>(tokens.size());
      if (id != expected)
        fail(where, fmt::format("no token has the id {}; ids must go from 0 up without holes", expected));
      if (std::ranges::binary_search(added_, id, {}, &AddedToken::id)) {
        tokens.push_back(text);
        continue;
      }
      const auto bytes = from_alphabet(text);
      if (!bytes)
        fail(where,
             fmt::format("token '{}' (id {}) has characters that stand for no byte; is it a byte-level BPE?",
                         text, id));
      if (bytes->size() == 1) has_byte[static_cast<unsigned char>((*bytes)[0])] = true;
      tokens.push_back(*bytes);
    }
    if (const auto missing = std::ranges::find(has_byte, false); missing != has_byte.end()) {
      const std::string byte(1, static_cast<char>(missing - has_byte.begin()));
      fail(where, fmt::format("no token for the byte {:#04x}, spelled '{}'; each byte needs one",
                              missing - has_byte.begin(), to_alphabet(byte)));
    }
    return {std::move(tokens), std::move(merges_), std::move(added_), rules};
  }

 private:
  void place(const std::string& text, std::int32_t id, const std::string& where) {
    const auto [known, fresh] = tokens_.emplace(id, text);
    if (!fresh) fail(where, fmt::format("'{}' and '{}' both have the id {}", known->second, text, id));
  }

  std::unordered_map<std::string, std::int32_t> ids_;  // of the vocabulary, not of tokens added to it
  std::map<std::int32_t, std::string> tokens_;         // all, as the files spell them
  std::vector<Merge> merges_;
  std::map<std::pair<std::int32_t, std::int32_t>, std::string> merge_of_pair_;  // where it was read
  std::vector<AddedToken> added_;
};

Tokenizer Tokenizer::parse(std::string_view vocab_json, const std::string& vocab_name,
                           std::string_view merges_txt, const std::string& merges_name) {
  Reader reader;
  reader.read_vocabulary(parse_object(vocab_json, vocab_name), vocab_name);
  const std::string end_of_text(end_of_text_token);
  if (reader.has(end_of_text))
    reader.add_token(end_of_text, reader.id_of(end_of_text), /*special=*/true, vocab_name);

  for (std::int64_t number = 1; !merges_txt.empty(); ++number) {
    const std::size_t end = std::min(merges_txt.find('\n'), merges_txt.size());
    const std::string_view line = merges_txt.substr(0, end);
    merges_txt.remove_prefix(std::min(end + 1, merges_txt.size()));
    if (number == 1 && line.starts_with("#version")) continue;
    const std::string where = fmt::format("{}: line {}", merges_name, number);
    const std::size_t space = line.find(' ');
    if (space == line.npos || space == 0 || space + 1 == line.size() ||
        line.find(' ', space + 1) != line.npos)
      fail(where, "is not two tokens with a space between");
    reader.add_merge(std::string(line.substr(0, space)), std::string(line.substr(space + 1)), where);
  }
  return reader.finish(vocab_name);
}

namespace {

// Unknown tokens (unk_token, fuse_unk, byte_fallback) cannot occur where each byte has a token.
void require_plain_model(const json& model, const std::string& where) {
  const json& type = member(model, "type", where);
  if (type != "BPE") fail(where + ".type", quoted(type) + " is not supported; expected \"BPE\"");
  const std::string prefix = where + ".";
  require(model, "dropout", {nullptr, 0.0}, prefix);
  require(model, "continuing_subword_prefix", {nullptr, ""}, prefix);
  require(model, "end_of_word_suffix", {nullptr, ""}, prefix);
  require(model, "ignore_merges", {false, true}, prefix);
}

// "a b", or ["a", "b"] as newer files have it.
std::pair<std::string, std::string> parse_merge(const json& merge, const std::string& where) {
  if (merge.is_string()) {
    const auto& text = merge.get_ref<const std::string&>();
    const std::size_t space = text.find(' ');
    if (space != text.npos && text.find(' ', space + 1) == text.npos)
      return {text.substr(0, space), text.substr(space + 1)};
  } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return {merge[0].get<std::string>(), merge[1].get<std::string>()};
  }
  fail(where, "is neither \"a b\" nor [\"a\", \"b\"]");
}

}  // namespace

Tokenizer Tokenizer::parse(std::string_view tokenizer_json, const std::string& name) {
  const json file = parse_object(tokenizer_json, name);
  const std::string model_name = name + ": model";
  const json& model = member(file, "model", name);
  require_plain_model(model, model_name);
  const std::string prefix = name + ": ";
  for (const char* key : {"truncation", "padding", "normalizer"}) require(file, key, {nullptr}, prefix);
  require_post_processor(file, name);
  require_type(part(file, "decoder", name), {"ByteLevel"}, prefix + "decoder");
  const Rules rules{read_word_pattern(file, name), model.value("ignore_merges", json(false)) == true};

  Reader reader;
  reader.read_vocabulary(member(model, "vocab", model_name), model_name + ".vocab");
  const json none = json::array();
  const json& added = file.contains("added_tokens") ? file["added_tokens"] : none;
  if (!added.is_array()) fail(prefix + "added_tokens", "is not an array");
  for (std::size_t i = 0; i < added.size(); ++i) {
    const std::string where = fmt::format("{}added_tokens[{}]", prefix, i);
    const json &content = member(added[i], "content", where), &id = member(added[i], "id", where);
    if (!content.is_string()) fail(where + ".content", "is not a string");
    for (const char* flag : {"single_word", "lstrip", "rstrip"})
      require(added[i], flag, {false}, where + ".");
    const auto special = added[i].find("special");
    const auto& text = content.get_ref<const std::string&>();
    reader.add_token(text, Reader::parse_id(id, where, text), special != added[i].end() && *special == true,
                     where);
  }
  const json& merges = member(model, "merges", model_name);
  if (!merges.is_array()) fail(model_name + ".merges", "is not an array");
  for (std::size_t i = 0; i < merges.size(); ++i) {
    const std::string where = fmt::format("{}.merges[{}]", model_name, i);
    const auto [left, right] = parse_merge(merges[i], where);
    reader.add_merge(left, right, where);
  }
  return reader.finish(model_name + ".vocab", rules);
}

Tokenizer Tokenizer::read(const fs::path& path) {
  if (!fs::is_directory(path)) return parse(read_text(path), path.string());
  const fs::path whole = path / "tokenizer.json", vocab = path / "vocab.json", merges = path / "merges.txt";
  if (fs::exists(whole)) return parse(read_text(whole), whole.string());
  if (!fs::exists(vocab) || !fs::exists(merges))
    fail(path.string(), "holds no tokenizer: neither tokenizer.json nor both vocab.json and merges.txt");
  return parse(read_text(vocab), vocab.string(), read_text(merges), merges.string());
}

void Tokenizer::write(const fs::path& folder) const {
  std::vector<std::string> spelled;
  for (const std::string& token : tokens_) spelled.push_back(to_alphabet(token));
  std::vector<bool> listed(tokens_.size(), true);
  ordered_json added = ordered_json::array();
  for (const AddedToken& t : added_) {
    const auto id = static_cast<std::size_t>(t.id);
    spelled[id] = tokens_[id];
    listed[id] = t.in_vocabulary;
    added.push_back({{"id", t.id},
                     {"content", tokens_[id]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", t.special}});
  }
  // Filled at its end: operator[] of ordered_json looks through all keys.
  ordered_json::object_t vocabulary;
  for (std::size_t id = 0; id < tokens_.size(); ++id)
    if (listed[id]) vocabulary.push_back({spelled[id], id});
  ordered_json merges = ordered_json::array();
  std::string merge_lines(merges_header);
  for (const Merge& merge : merges_) {
    std::string line =
        spelled[static_cast<std::size_t>(merge.left)] + ' ' + spelled[static_cast<std::size_t>(merge.right)];
    merge_lines += line + '\n';
    merges.push_back(std::move(line));
  }

  const bool gpt2 = rules_.words == WordPattern::gpt2 && !rules_.ignore_merges;
  const bool plain =
      gpt2 && (added_.empty() || (added_.size() == 1 && end_of_text() && added_[0].in_vocabulary));
  if (plain) {
    write_file(folder / "vocab.json", ordered_json(vocabulary).dump());
    write_file(folder / "merges.txt", merge_lines);
  } else {  // those of another tokenizer must not stay beside tokenizer.json
    fs::remove(folder / "vocab.json");
    fs::remove(folder / "merges.txt");
  }
  const auto byte_level = [](bool cuts) -> ordered_json {
    return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", cuts}};
  };
  ordered_json cut = byte_level(true);
  if (rules_.words != WordPattern::gpt2) {
    const ordered_json split = {{"type", "Split"},
                                {"pattern", {{"Regex", expression(rules_.words)}}},
                                {"behavior", "Isolated"},
                                {"invert", false}};
    cut = {{"type", "Sequence"}, {"pretokenizers", ordered_json::array({split, byte_level(false)})}};
  }
  const ordered_json file = {{"version", "1.0"},
                             {"truncation", nullptr},
                             {"padding", nullptr},
                             {"added_tokens", std::move(added)},
                             {"normalizer", nullptr},
                             {"pre_tokenizer", std::move(cut)},
                             {"post_processor", nullptr},
                             {"decoder", byte_level(true)},
                             {"model",
                              {{"type", "BPE"},
                               {"dropout", nullptr},
                               {"unk_token", nullptr},
                               {"continuing_subword_prefix", nullptr},
                               {"end_of_word_suffix", nullptr},
                               {"fuse_unk", false},
                               {"byte_fallback", false},
                               {"ignore_merges", rules_.ignore_merges},
                               {"vocab", std::move(vocabulary)},
                               {"merges", std::move(merges)}}}};
  write_file(folder / "tokenizer.json", file.dump(1) + '\n');
}

}  // namespace tegula::io
