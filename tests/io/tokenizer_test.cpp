#include "framework/io/tokenizer.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "framework/io/file.hpp"
#include "framework/io/pretokenizer.hpp"
#include "framework/io/unicode.hpp"
#include "tests/io/temporary_folder.hpp"

namespace tegula::io {
namespace {

using nlohmann::json;
using Ids = std::vector<std::int32_t>;
using Strings = std::vector<std::string>;

Strings words(std::string_view text, WordPattern pattern = WordPattern::gpt2) {
  Strings result;
  while (!text.empty()) {
    const std::size_t bytes = first_word(text, pattern);
    result.emplace_back(text.substr(0, bytes));
    text.remove_prefix(bytes);
  }
  return result;
}

Tokenizer trained(std::string_view text, int vocabulary) { return Tokenizer::train({&text, 1}, vocabulary); }

// `length` characters drawn from `alphabet`.
std::string random_text(std::mt19937& random, const Strings& alphabet, int length) {
  std::string text;
  for (int i = 0; i < length; ++i) text += alphabet[random() % alphabet.size()];
  return text;
}
const Strings multilingual = {"a",
                              "b",
                              "c",
                              "A",
                              " ",
                              "  ",
                              "\n",
                              "\t",
                              "'",
                              "'s",
                              "'ll",
                              "7",
                              ",",
                              "é",
                              "ß",
                              "中",
                              "文",
                              "Ⅷ",
                              "٣",
                              "\u00a0",
                              "\u3000",
                              "👍",
                              "\u0301",
                              "\xff",
                              "\xc3",
                              "\xe4\xb8",
                              "\xed\xa0\x80",
                              std::string(1, '\0')};

TEST_CASE("UTF-8 is read strictly and written back") {
  for (char32_t c : {0x0u, 0x7fu, 0x80u, 0x7ffu, 0x800u, 0xd7ffu, 0xe000u, 0xffffu, 0x10000u, 0x10ffffu}) {
    std::string text;
    append_utf8(text, c);
    const CodePoint read = decode_utf8(text + "x");
    CHECK(read.value == c);
    CHECK(read.bytes == text.size());
    if (text.size() > 1) CHECK(decode_utf8(text.substr(0, text.size() - 1)).value == CodePoint::invalid);
  }
  for (std::string_view text :
       {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf",
        "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "\xc3(", "\xe4\xb8("}) {
    CHECK(decode_utf8(text).value == CodePoint::invalid);
    CHECK(decode_utf8(text).bytes == 1);
  }
}

TEST_CASE("characters have their Unicode classes") {
  using enum CharacterClass;
  const std::map<CharacterClass, std::vector<char32_t>> examples = {
      {space,
       {' ', '\t', '\n', 0xb, '\f', '\r', 0x85, 0xa0, 0x1680, 0x2000, 0x200a, 0x2028, 0x2029, 0x202f, 0x205f,
        0x3000}},
      {letter,
       {'A', 'Z', 'a', 'z', 0xaa, 0xb5, 0xe9, 0x2b0, 0x416, 0x5d0, 0x905, 0x3042, 0x4e00, 0x9fff, 0xac00,
        0x1d400, 0x323af}},
      {number, {'0', '9', 0xb2, 0xbd, 0x663, 0x966, 0x2167, 0x2460, 0x3007, 0xff10, 0x1d7ce}},
      {other,
       {0, 0x1c, '!', '@', '[', '`', '{', '~', 0x7f, 0xd7, 0x301, 0x180e, 0x200b, 0x20ac, 0x1f44d, 0x10ffff,
        CodePoint::invalid}}};
  for (const auto& [expected, characters] : examples)
    for (char32_t c : characters) {
      CAPTURE(static_cast<std::uint32_t>(c));
      CHECK(character_class(c) == expected);
    }
}

TEST_CASE("words are those of GPT-2's pattern") {
  CHECK(words("Hello world") == Strings{"Hello", " world"});
  CHECK(words("Hello, World!! 123abc") == Strings{"Hello", ",", " World", "!!", " 123", "abc"});
  CHECK(words("it's I'll we've you're 'twas don't I'm he'd") == Strings{"it", "'s", " I", "'ll", " we", "'ve",
                                                                        " you", "'re", " '", "twas", " don",
                                                                        "'t", " I", "'m", " he", "'d"});
  CHECK(words("IT'S ''s 's") == Strings{"IT", "'", "S", " ''", "s", " '", "s"});
  CHECK(words("naïve Größe") == Strings{"naïve", " Größe"});
  CHECK(words("中文 3½ x²") == Strings{"中文", " 3½", " x", "²"});
  CHECK(words("e\u0301") == Strings{"e", "\u0301"});  // combining marks are no letters
  CHECK(words("a\xff\xfe b\xc3") == Strings{"a", "\xff\xfe", " b", "\xc3"});
  CHECK(words("").empty());
}

TEST_CASE("the last space before a word goes with it, or stands alone") {
  CHECK(words("a  b") == Strings{"a", " ", " b"});
  CHECK(words("a   b") == Strings{"a", "  ", " b"});
  CHECK(words("a\nb") == Strings{"a", "\n", "b"});
  CHECK(words("a\n\nb") == Strings{"a", "\n", "\n", "b"});
  CHECK(words("a \nb") == Strings{"a", " ", "\n", "b"});
  CHECK(words("a\n b") == Strings{"a", "\n", " b"});
  CHECK(words("a  ") == Strings{"a", "  "});
  CHECK(words(" ") == Strings{" "});
  CHECK(words(" \t\n") == Strings{" \t\n"});
  CHECK(words("\u3000\u3000中") == Strings{"\u3000", "\u3000", "中"});
  CHECK(words("\r\n\r\nx") == Strings{"\r\n\r", "\n", "x"});
  CHECK(words("a\u00a0 b") == Strings{"a", "\u00a0", " b"});
}

TEST_CASE("words are those of Llama 3's pattern") {
  const auto cut = [](std::string_view text) { return words(text, WordPattern::llama3); };
  CHECK(cut("Hello world") == Strings{"Hello", " world"});
  CHECK(cut("it's IT'S we'LL \u00fcber'x") ==
        Strings{"it", "'s", " IT", "'S", " we", "'LL", " \u00fcber", "'x"});
  CHECK(cut("'\u017f'") == Strings{"'\u017f", "'"});
  CHECK(cut("12345 678") == Strings{"123", "45", " ", "678"});
  CHECK(cut("$abc (x) -- end") == Strings{"$abc", " (", "x", ")", " --", " end"});
  CHECK(cut("!\n\nword;\r\n x") == Strings{"!\n\n", "word", ";\r\n", " x"});
  CHECK(cut("a \n\n  b") == Strings{"a", " \n\n", " ", " b"});
  CHECK(cut("\t\tx  \t") == Strings{"\t", "\tx", "  \t"});
  CHECK(cut("  1") == Strings{" ", " ", "1"});
  CHECK(cut("\xff\xfey") == Strings{"\xff\xfe", "y"});
  CHECK(cut(" \xffy") == Strings{" \xff", "y"});
  CHECK(cut(" ") == Strings{" "});
}

TEST_CASE("a byte tokenizer has the bytes for tokens") {
  const Tokenizer bytes = Tokenizer::bytes();
  CHECK(bytes.size() == 256);
  CHECK(!bytes.end_of_text());
  CHECK(bytes.encode(std::string("A\0\xff", 3)) == Ids{65, 0, 255});
  CHECK(bytes.decode(Ids{72, 105}) == "Hi");
  CHECK(bytes.encode("<|endoftext|>").size() == 13);
  CHECK(message_of([&] {
          (void)bytes.decode(Ids{72, 256});
        }) ==
        "[tokenizer] cannot decode the id 256: the vocabulary has the ids 0 to 255; was the text encoded by "
        "another one?");
  CHECK(contains(message_of([&] { (void)bytes.decode(Ids{-1}); }), "cannot decode the id -1"));
}

// The beginning of GPT-2's own vocabulary: the bytes in the order of its alphabet, its first 23 merges.
const std::string gpt2_merges =
    "#version: 0.2\nĠ t\nĠ a\nh e\ni n\nr e\no n\nĠt he\ne r\nĠ s\na t\nĠ w\nĠ o\ne n\nĠ c\ni t\ni s\na n\no "
    "r\ne s\nĠ b\n"
    "e d\nĠ f\nin g\n";

json gpt2_vocabulary() {
  json vocabulary;
  int id = 0;
  const auto add = [&](char32_t c) {
    std::string token;
    append_utf8(token, c);
    vocabulary[token] = id++;
  };
  for (char32_t c = '!'; c <= '~'; ++c) add(c);
  for (char32_t c = 0xa1; c <= 0xff; ++c)
    if (c != 0xad) add(c);
  for (char32_t c = 0x100; c < 0x144; ++c) add(c);
  std::istringstream lines(gpt2_merges);
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line)) {
    line.erase(line.find(' '), 1);
    vocabulary[line] = id++;
  }
  vocabulary["<|endoftext|>"] = id;
  return vocabulary;
}

Tokenizer small_gpt2() {
  return Tokenizer::parse(gpt2_vocabulary().dump(), "vocab.json", gpt2_merges, "merges.txt");
}

TEST_CASE("GPT-2's first merges give GPT-2's ids") {
  const Tokenizer gpt2 = small_gpt2();
  CHECK(gpt2.size() == 256 + 23 + 1);
  CHECK(gpt2.end_of_text() == 279);
  CHECK(gpt2.token(262) == " the");
  CHECK(gpt2.encode(" the") == Ids{262});  // as in the real one, whose " the" is 262, too
  CHECK(gpt2.encode("the") == Ids{83, 258});
  CHECK(gpt2.encode("Hello!") == Ids{39, 68, 75, 75, 78, 0});  // no merge: H e l l o !
  CHECK(gpt2.encode("there") == Ids{83, 258, 260});            // (h, e) ranks before (e, r)
  CHECK(gpt2.encode(" singing") == Ids{264, 278, 278});        // Ġs, then in g twice
  CHECK(gpt2.encode("\n\n") == Ids{198, 198});                 // Ċ
  CHECK(gpt2.encode("é") == Ids{127, 102});                    // Ã ©
  CHECK(gpt2.encode("a<|endoftext|> the") == Ids{64, 279, 262});
  CHECK(gpt2.encode("  <|endoftext|>") == Ids{220, 220, 279});  // spaces at the end of what is before it
  CHECK(gpt2.decode(gpt2.encode("a<|endoftext|> the")) == "a<|endoftext|> the");
}

// What BPE means, as plainly as it can be said: the lowest rank first, of equals the leftmost.
Ids oracle(const Tokenizer& tokenizer, const std::vector<std::pair<std::string, std::string>>& merges,
           std::string_view text) {
  std::map<std::string, std::int32_t> ids;
  for (int id = 0; id < tokenizer.size(); ++id) ids[std::string(tokenizer.token(id))] = id;
  Ids result;
  for (const std::string& word : words(text)) {
    Strings symbols;
    for (char c : word) symbols.emplace_back(1, c);
    for (;;) {
      std::size_t best = merges.size(), at = 0;
      for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
        const auto found = std::ranges::find(merges, std::pair(symbols[i], symbols[i + 1]));
        const auto rank = static_cast<std::size_t>(found - merges.begin());
        if (rank < best) best = rank, at = i;
      }
      if (best == merges.size()) break;
      symbols[at] += symbols[at + 1];
      symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    }
    for (const std::string& symbol : symbols) result.push_back(ids.at(symbol));
  }
  return result;
}

// The merges of a trained tokenizer, in bytes, from its file: tokens of printable ASCII and Ġ only.
std::vector<std::pair<std::string, std::string>> merges_of(const Tokenizer& tokenizer) {
  const TemporaryFolder folder;
  tokenizer.write(folder.path());
  std::istringstream lines(contents(folder / "merges.txt"));
  std::vector<std::pair<std::string, std::string>> merges;
  std::string line;
  std::getline(lines, line);
  const auto bytes = [](std::string token) {
    for (std::size_t at; (at = token.find("Ġ")) != token.npos;) token.replace(at, 2, " ");
    return token;
  };
  while (std::getline(lines, line)) {
    const std::size_t space = line.find(' ');
    merges.emplace_back(bytes(line.substr(0, space)), bytes(line.substr(space + 1)));
  }
  return merges;
}

TEST_CASE("encoding agrees with the definition on random texts") {
  std::mt19937 random(1);
  const Strings alphabet = {"a", "b", "a", "b", "c", " ", "ab", "aab"};
  for (int trial = 0; trial < 20; ++trial) {
    const Tokenizer tokenizer = trained(random_text(random, alphabet, 1000), 280 + trial);
    const auto merges = merges_of(tokenizer);
    for (int i = 0; i < 10; ++i) {
      const std::string text = random_text(random, alphabet, 60);
      CAPTURE(text);
      CHECK(tokenizer.encode(text) == oracle(tokenizer, merges, text));
    }
  }
}

// Counts everything anew for each merge.
Strings brute_force_training(std::string_view text, int vocabulary) {
  Strings tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  std::vector<Ids> all;
  for (const std::string& word : words(text)) {
    all.emplace_back();
    for (char c : word) all.back().push_back(static_cast<unsigned char>(c));
  }
  std::vector<std::pair<std::int32_t, std::int32_t>> skipped;
  while (static_cast<int>(tokens.size()) < vocabulary - 1) {
    std::map<std::pair<std::int32_t, std::int32_t>, int> counts;
    for (const Ids& word : all)
      for (std::size_t i = 0; i + 1 < word.size(); ++i) ++counts[{word[i], word[i + 1]}];
    for (const auto& pair : skipped) counts.erase(pair);
    const auto best = std::ranges::max_element(
        counts, {}, [](const auto& entry) { return entry.second; });  // the first of equals
    if (best == counts.end() || best->second < 2) break;
    const auto [left, right] = best->first;
    std::string token = tokens[static_cast<std::size_t>(left)] + tokens[static_cast<std::size_t>(right)];
    if (std::ranges::find(tokens, token) != tokens.end()) {
      skipped.push_back(best->first);
      continue;
    }
    for (Ids& word : all)
      for (std::size_t i = 0; i + 1 < word.size(); ++i)
        if (word[i] == left && word[i + 1] == right) {
          word[i] = static_cast<std::int32_t>(tokens.size());
          word.erase(word.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        }
    tokens.push_back(std::move(token));
  }
  tokens.emplace_back("<|endoftext|>");
  return tokens;
}

TEST_CASE("training agrees with counting anew for each merge") {
  std::mt19937 random(2);
  const Strings alphabet = {"a", "b", "a", "b", "c", " ", "é", "aaa"};
  for (int trial = 0; trial < 20; ++trial) {
    const std::string text = random_text(random, alphabet, 300);
    const Strings expected = brute_force_training(text, 290);
    const Tokenizer tokenizer = trained(text, static_cast<int>(expected.size()));
    for (int id = 0; id < tokenizer.size(); ++id) {
      CAPTURE(id);
      CHECK(tokenizer.token(id) == expected[static_cast<std::size_t>(id)]);
    }
  }
}

TEST_CASE("training merges the most frequent pair, of equals that with the lowest ids") {
  // Pairs within words: (a, b) 4 times, (b, c) and ( , a) 3 times, (b, d) once.
  const Tokenizer tokenizer = trained("abc abc abc abd", 260);
  CHECK(tokenizer.token(256) == "ab");
  CHECK(tokenizer.token(257) == " ab");   // 3 times, as (ab, c): the space is the lower id
  CHECK(tokenizer.token(258) == " abc");  // twice
  CHECK(tokenizer.end_of_text() == 259);
  CHECK(tokenizer.encode(" abc abd") == Ids{258, 257, 'd'});
}

TEST_CASE("training sees words, not what lies between texts or end-of-text tokens") {
  const std::vector<std::string_view> texts = {"xy", "<|endoftext|>ab<|endoftext|>ab<|endoftext|>", "xy"};
  std::vector<int> calls;
  const Tokenizer tokenizer = Tokenizer::train(texts, 259, [&](int tokens) { calls.push_back(tokens); });
  CHECK(tokenizer.token(256) == "ab");
  CHECK(tokenizer.token(257) == "xy");
  CHECK(calls == std::vector<int>{257, 258});
  CHECK(message_of([&] { (void)Tokenizer::train(texts, 260); }) ==
        "[tokenizer] cannot train a vocabulary of 260: the text has no pair left that occurs twice after 259 "
        "tokens; ask for at "
        "most 259, or give more text");
  CHECK(message_of([&] { (void)Tokenizer::train(texts, 256); }) ==
        "[tokenizer] cannot train a vocabulary of 256: it has at least 257 tokens, the bytes and "
        "<|endoftext|>");
  CHECK(Tokenizer::train({}, 257).size() == 257);
}

TEST_CASE("any bytes survive encoding and decoding") {
  std::mt19937 random(3);
  const Tokenizer many = trained(random_text(random, multilingual, 20000), 600), few = small_gpt2(),
                  bytes = Tokenizer::bytes();
  for (const Tokenizer* tokenizer : {&many, &few, &bytes}) {
    for (int trial = 0; trial < 50; ++trial) {
      std::string text = random_text(random, multilingual, 200);
      CHECK(tokenizer->decode(tokenizer->encode(text)) == text);
      for (char& c : text) c = static_cast<char>(random());
      CHECK(tokenizer->decode(tokenizer->encode(text)) == text);
    }
    CHECK(tokenizer->encode("").empty());
    CHECK(tokenizer->decode({}).empty());
  }
}

TEST_CASE("a word of a million letters takes moments") {
  const Tokenizer tokenizer = trained(std::string(1000, 'a'), 260);
  CHECK(tokenizer.encode(std::string(1'000'000, 'a')).size() == 125'000);  // aa, aaaa, aaaaaaaa
}

TEST_CASE("a written tokenizer is the same when read, from either kind of file") {
  std::mt19937 random(4);
  const std::string text = random_text(random, multilingual, 10000);
  const std::vector<Tokenizer> tokenizers = {trained(text, 500), small_gpt2(), Tokenizer::bytes()};
  for (const Tokenizer& written : tokenizers) {
    const TemporaryFolder folder;
    written.write(folder.path());
    const Tokenizer whole = Tokenizer::read(folder.path()), file = Tokenizer::read(folder / "tokenizer.json");
    std::filesystem::remove(folder / "tokenizer.json");
    const Tokenizer pair = Tokenizer::read(folder.path());
    for (const Tokenizer* read : {&whole, &file, &pair}) {
      CHECK(read->size() == written.size());
      CHECK(read->end_of_text() == written.end_of_text());
      CHECK(read->encode(text + "<|endoftext|>" + text) == written.encode(text + "<|endoftext|>" + text));
    }
  }
}

TEST_CASE("files are laid out as GPT-2's") {
  const TemporaryFolder folder;
  trained("abab ab\xff", 258).write(folder.path());
  CHECK(contents(folder / "merges.txt") == "#version: 0.2\na b\n");
  const json vocabulary = json::parse(contents(folder / "vocab.json"));
  CHECK(vocabulary.size() == 258);
  CHECK(vocabulary["Ġ"] == 32);
  CHECK(vocabulary["ÿ"] == 255);
  CHECK(vocabulary["Ń"] == 0xad);  // the last of the 68 that are not printable
  CHECK(vocabulary["ab"] == 256);
  CHECK(vocabulary["<|endoftext|>"] == 257);
  const json file = json::parse(contents(folder / "tokenizer.json"));
  CHECK(file["model"]["vocab"] == vocabulary);
  CHECK(file["model"]["merges"] == json{"a b"});
  CHECK(file["added_tokens"][0]["content"] == "<|endoftext|>");
  CHECK(file["pre_tokenizer"]["add_prefix_space"] == false);
}

// A tokenizer.json of the bytes and "ab".
json file_of_bytes() {
  json vocabulary = gpt2_vocabulary();
  for (auto it = vocabulary.begin(); it != vocabulary.end();)
    it = it.value() < 256 ? std::next(it) : vocabulary.erase(it);
  vocabulary["ab"] = 256;
  return {{"added_tokens", json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", {"a b"}}}}};
}

// How Llama 3's file cuts a text.
json llama3_words() {
  return {{"type", "Sequence"},
          {"pretokenizers",
           {{{"type", "Split"},
             {"pattern", {{"Regex", expression(WordPattern::llama3)}}},
             {"behavior", "Isolated"},
             {"invert", false}},
            {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
}

TEST_CASE("tokenizer.json may spell merges as pairs and add tokens") {
  json file = file_of_bytes();
  file["model"]["merges"] = json::array({json::array({"a", "b"})});
  file["added_tokens"] = {{{"id", 257}, {"content", "<x>"}, {"special", true}},
                          {{"id", 258}, {"content", "  "}},
                          {{"id", 259}, {"content", "<x>y"}}};
  const Tokenizer tokenizer = Tokenizer::parse(file.dump(), "tokenizer.json");
  CHECK(tokenizer.size() == 260);
  CHECK(tokenizer.encode("ab<x>  <x>y<x") == Ids{256, 257, 258, 259, 27, 87});
  CHECK(tokenizer.decode(Ids{257, 258, 256}) == "<x>  ab");

  const TemporaryFolder folder;
  write_file(folder / "vocab.json", "of another tokenizer");
  tokenizer.write(folder.path());
  CHECK(!std::filesystem::exists(folder / "vocab.json"));  // it cannot say which tokens are added
  CHECK(Tokenizer::read(folder.path()).encode("ab<x>  <x>y<x") == Ids{256, 257, 258, 259, 27, 87});
}

TEST_CASE("what tokenizer.json asks for and is not supported is refused") {
  const auto refusal = [](const std::string& patch) {
    json file = file_of_bytes();
    file.merge_patch(json::parse(patch));
    return message_of([&] { (void)Tokenizer::parse(file.dump(), "t.json"); });
  };
  CHECK(refusal("{}").empty());
  CHECK(refusal(R"({"model": null})") == "t.json: has no key 'model'");
  CHECK(refusal(R"({"model": 1})") == "t.json: model: is not a JSON object");
  CHECK(refusal(R"({"model": {"type": null}})") == "t.json: model: has no key 'type'");
  CHECK(refusal(R"({"model": {"type": "WordPiece"}})") ==
        "t.json: model.type: \"WordPiece\" is not supported; expected \"BPE\"");
  CHECK(refusal(R"({"model": {"dropout": 0.1}})") ==
        "t.json: model.dropout: 0.1 is not supported; expected null or 0.0");
  CHECK(refusal(R"({"model": {"end_of_word_suffix": "</w>"}})") ==
        "t.json: model.end_of_word_suffix: \"</w>\" is not supported; expected null or \"\"");
  CHECK(refusal(R"({"model": {"continuing_subword_prefix": "@@"}})")
            .starts_with("t.json: model.continuing_subword_prefix: "));
  CHECK(refusal(R"({"model": {"ignore_merges": 1}})") ==
        "t.json: model.ignore_merges: 1 is not supported; expected false or true");
  CHECK(refusal(R"({"normalizer": {"type": "NFC"}})") ==
        "t.json: normalizer: an object is not supported; expected null");
  CHECK(refusal(R"({"padding": {}})") == "t.json: padding: an object is not supported; expected null");
  CHECK(refusal(R"({"pre_tokenizer": null})") ==
        "t.json: pre_tokenizer: is missing; expected {\"type\": \"ByteLevel\"}");
  CHECK(
      refusal(R"({"pre_tokenizer": {"type": "Whitespace"}})") ==
      "t.json: pre_tokenizer.type: \"Whitespace\" is not supported; expected \"ByteLevel\" or \"Sequence\"");
  CHECK(refusal(R"({"pre_tokenizer": {"add_prefix_space": true}})") ==
        "t.json: pre_tokenizer.add_prefix_space: true is not supported; expected false");
  CHECK(refusal(R"({"pre_tokenizer": {"use_regex": false}})") ==
        "t.json: pre_tokenizer.use_regex: false is not supported; expected true");
  CHECK(refusal(R"({"post_processor": {"type": "TemplateProcessing"}})").empty());
  CHECK(refusal(R"({"post_processor": {"type": "BertProcessing"}})")
            .starts_with("t.json: post_processor.type: \"Bert"));
  CHECK(
      refusal(
          R"({"post_processor": {"type": "Sequence", "processors": [{"type": "ByteLevel"}, {"type": "X"}]}})")
          .starts_with("t.json: post_processor.processors[1].type: \"X\""));
  CHECK(refusal(R"({"decoder": null})").starts_with("t.json: decoder: is missing"));

  CHECK(refusal(R"({"model": {"vocab": null}})") == "t.json: model: has no key 'vocab'");
  CHECK(refusal(R"({"model": {"vocab": 3}})") ==
        "t.json: model.vocab: is not a JSON object of tokens and their ids");
  CHECK(refusal(R"({"model": {"vocab": {"ab": null}}})") ==
        "t.json: model.merges[0]: merges 'a' and 'b', but 'ab' is not in the vocabulary");
  CHECK(refusal(R"({"model": {"vocab": {"x": 65}}})") ==
        "t.json: model.vocab: 'b' and 'x' both have the id 65");
  CHECK(refusal(R"({"model": {"vocab": {"ba": 300}}})") ==
        "t.json: model.vocab: no token has the id 257; ids must go from 0 up without holes");
  for (const char* id : {"-1", "1.5", "\"7\"", "2147483647", "99999999999999999999"})
    CHECK(refusal(std::string(R"({"model": {"vocab": {"ba": )") + id + "}}}") ==
          "t.json: model.vocab: the id of 'ba' is not an integer from 0 to 2^31 - 2");
  CHECK(refusal(R"({"model": {"vocab": {"": 257}}})") == "t.json: model.vocab: holds an empty token");
  CHECK(refusal(R"({"model": {"vocab": {"a b": 257}}})") ==
        "t.json: model.vocab: token 'a b' (id 257) has characters that stand for no byte; is it a "
        "byte-level BPE?");
  CHECK(refusal(R"({"model": {"vocab": {"x": null, "xx": 87}}})") ==
        "t.json: model.vocab: no token for the byte 0x78, spelled 'x'; each byte needs one");

  CHECK(refusal(R"({"model": {"merges": null}})") == "t.json: model: has no key 'merges'");
  CHECK(refusal(R"({"model": {"merges": {}}})") == "t.json: model.merges: is not an array");
  for (const char* merge : {"\"ab\"", "\"a b c\"", "[\"a\"]", "[\"a\", 1]", "7"})
    CHECK(refusal(std::string(R"({"model": {"merges": [)") + merge + "]}}") ==
          "t.json: model.merges[0]: is neither \"a b\" nor [\"a\", \"b\"]");
  CHECK(refusal(R"({"model": {"merges": ["a b", "xx b"]}})") ==
        "t.json: model.merges[1]: merges 'xx' and 'b', but 'xx' is not in the vocabulary");
  CHECK(refusal(R"({"model": {"merges": ["a b", "a b"]}})") ==
        "t.json: model.merges[1]: merges 'a' and 'b', as t.json: model.merges[0] does already");

  CHECK(refusal(R"({"added_tokens": {}})") == "t.json: added_tokens: is not an array");
  CHECK(refusal(R"({"added_tokens": [7]})") == "t.json: added_tokens[0]: is not a JSON object");
  CHECK(refusal(R"({"added_tokens": [{"id": 257}]})") == "t.json: added_tokens[0]: has no key 'content'");
  CHECK(refusal(R"({"added_tokens": [{"id": 257, "content": 3}]})") ==
        "t.json: added_tokens[0].content: is not a string");
  CHECK(refusal(R"({"added_tokens": [{"id": 257, "content": ""}]})") ==
        "t.json: added_tokens[0]: holds an empty token");
  CHECK(refusal(R"({"added_tokens": [{"id": 257, "content": "<x>", "lstrip": true}]})") ==
        "t.json: added_tokens[0].lstrip: true is not supported; expected false");
  CHECK(refusal(R"({"added_tokens": [{"id": 257, "content": "é"}]})") ==
        "t.json: added_tokens[0]: 'é' would be decoded as other bytes; not supported");
  CHECK(refusal(R"({"added_tokens": [{"id": 257, "content": "ab"}]})") ==
        "t.json: added_tokens[0]: 'ab' has the id 257, but 256 in the vocabulary");
  CHECK(refusal(R"({"added_tokens": [{"id": 5, "content": "<x>"}]})") ==
        "t.json: added_tokens[0]: '&' and '<x>' both have the id 5");
  CHECK(refusal(R"({"added_tokens": [{"id": 256, "content": "ab"}, {"id": 256, "content": "ab"}]})") ==
        "t.json: added_tokens[1]: 'ab' is listed twice");
}

TEST_CASE("words that are split otherwise than in GPT-2 or Llama 3 are refused") {
  const auto refusal = [](const std::string& path, const json& value) {
    json file = file_of_bytes();
    file["pre_tokenizer"] = llama3_words();
    if (!path.empty()) file["pre_tokenizer"][json::json_pointer(path)] = value;
    return message_of([&] { (void)Tokenizer::parse(file.dump(), "t.json"); });
  };
  CHECK(refusal("", {}).empty());
  CHECK(refusal("/pretokenizers", {}) ==
        "t.json: pre_tokenizer.pretokenizers: is not supported; expected a Split and a ByteLevel");
  CHECK(refusal("/pretokenizers/0/type", "Digits")
            .starts_with("t.json: pre_tokenizer.pretokenizers[0].type: \"Digits\" is not supported"));
  CHECK(refusal("/pretokenizers/0/pattern", {{"String", " "}}) ==
        "t.json: pre_tokenizer.pretokenizers[0].pattern: has no key 'Regex'");
  CHECK(refusal("/pretokenizers/0/pattern/Regex", "[a-z]+") ==
        "t.json: pre_tokenizer.pretokenizers[0].pattern.Regex: \"[a-z]+\" is not supported; expected that of "
        "GPT-2 "
        "or Llama 3");
  CHECK(refusal("/pretokenizers/0/behavior", "Removed")
            .starts_with("t.json: pre_tokenizer.pretokenizers[0].behavior: \"Removed\""));
  CHECK(refusal("/pretokenizers/0/invert", true)
            .starts_with("t.json: pre_tokenizer.pretokenizers[0].invert: true"));
  CHECK(refusal("/pretokenizers/1/use_regex", true)
            .starts_with("t.json: pre_tokenizer.pretokenizers[1].use_regex: true"));
}

TEST_CASE("a word that is a token is not put together where merges are ignored") {
  json file = file_of_bytes();
  file["model"]["vocab"]["xyz"] = 257;  // that no merge makes
  const auto cut = [](const Tokenizer& tokenizer, std::string_view text) {
    Strings tokens;
    for (std::int32_t id : tokenizer.encode(text)) tokens.emplace_back(tokenizer.token(id));
    return tokens;
  };
  CHECK(cut(Tokenizer::parse(file.dump(), "t.json"), "xyz ab") == Strings{"x", "y", "z", " ", "ab"});
  file["model"]["ignore_merges"] = true;
  const Tokenizer tokenizer = Tokenizer::parse(file.dump(), "t.json");
  CHECK(cut(tokenizer, "xyz,xyz ab xyzab") ==
        Strings{"xyz", ",", "xyz", " ", "ab", " ", "x", "y", "z", "ab"});
  const TemporaryFolder folder;
  tokenizer.write(folder.path());
  CHECK(!std::filesystem::exists(folder / "vocab.json"));  // which cannot say so
  CHECK(cut(Tokenizer::read(folder.path()), "xyz") == Strings{"xyz"});
}

TEST_CASE("files that are no tokenizer are refused") {
  const std::string whole = file_of_bytes().dump();
  const auto refusal = [](std::string_view text) {
    return message_of([&] { (void)Tokenizer::parse(text, "t.json"); });
  };
  CHECK(refusal("") == "t.json: not valid JSON from byte 1 of 0 on; copy or make the file again");
  CHECK(refusal("[]") == "t.json: is not a JSON object");
  CHECK(refusal("{\"\xff\": 1}").starts_with("t.json: not valid JSON from byte 3"));
  for (std::size_t bytes = 0; bytes < whole.size(); bytes += 7)
    CHECK(refusal(std::string_view(whole).substr(0, bytes)).starts_with("t.json: not valid JSON from byte "));
  CHECK(contains(
      refusal("{\"model\": {\"type\": " + std::string(100'000, '[') + std::string(100'000, ']') + "}}"),
      "t.json: model.type: an array is not supported"));

  const TemporaryFolder folder;
  CHECK(message_of([&] { (void)Tokenizer::read(folder.path()); }) ==
        folder.path().string() +
            ": holds no tokenizer: neither tokenizer.json nor both vocab.json and merges.txt");
  CHECK(contains(message_of([&] { (void)Tokenizer::read(folder / "none"); }), "cannot read: No such file"));
}

TEST_CASE("merges.txt and vocab.json that do not fit are refused") {
  const auto refusal = [](const std::string& merges,
                          const std::string& vocabulary = gpt2_vocabulary().dump()) {
    return message_of([&] { (void)Tokenizer::parse(vocabulary, "v.json", merges, "m.txt"); });
  };
  CHECK(refusal("").empty());
  CHECK(refusal("#version: 0.2\nh e").empty());  // a last line without its end is whole
  CHECK(refusal("h e\n#version: 0.2\n") ==
        "m.txt: line 2: merges '#version:' and '0.2', but '#version:' is not in the vocabulary");
  for (const char* line : {"", "he", "h e r", " e", "h "})
    CHECK(refusal("#version: 0.2\n" + std::string(line) + "\n") ==
          "m.txt: line 2: is not two tokens with a space between");
  CHECK(refusal("h e\nh x\n") == "m.txt: line 2: merges 'h' and 'x', but 'hx' is not in the vocabulary");
  CHECK(refusal("h e\nh e\n") == "m.txt: line 2: merges 'h' and 'e', as m.txt: line 1 does already");
  CHECK(refusal("", "[1]") == "v.json: is not a JSON object");
  CHECK(refusal("", "{\"a\": 0, \"a\": 1}") ==
        "v.json: no token has the id 0; ids must go from 0 up without holes");
}

}  // namespace
}  // namespace tegula::io
