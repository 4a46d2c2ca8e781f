#include "framework/io/prepare_text.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "framework/io/file.hpp"
#include "framework/io/tokenizer.hpp"
#include "framework/io/tokens.hpp"
#include "tests/io/temporary_folder.hpp"

namespace tegula::io {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::string text_of(const fs::path& folder, const std::string& file) {
  const TokenFile tokens = TokenFile::open(folder / file);
  tokens.verify();
  std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens.size()));
  tokens.copy(0, ids);
  const Tokenizer tokenizer = Tokenizer::read(folder);
  CHECK(tokenizer.size() == tokens.vocabulary());
  return tokenizer.decode(ids);
}

TEST_CASE("the last part of the text is for validation") {
  const TemporaryFolder folder;
  write_file(folder / "a", "0123456789");
  write_file(folder / "b", "abcdefghij");
  const PreparedText result =
      prepare_text(std::vector{folder / "a", folder / "b"}, folder / "out/data", ByteTokens{}, 0.25);
  CHECK(text_of(folder / "out/data", "train.tokens") == "0123456789abcde");
  CHECK(text_of(folder / "out/data", "validation.tokens") == "fghij");
  CHECK(result.text_bytes == 20);
  CHECK(result.train_tokens == 15);
  CHECK(result.validation_tokens == 5);
  CHECK(result.vocabulary == 256);
  CHECK(json::parse(contents(folder / "out/data/meta.json")) ==
        json{{"tokenizer", "bytes"},
             {"vocabulary", 256},
             {"train_tokens", 15},
             {"validation_tokens", 5},
             {"validation_fraction", 0.25},
             {"text_bytes", 20},
             {"sources",
              {{{"file", (folder / "a").string()}, {"bytes", 10}},
               {{"file", (folder / "b").string()}, {"bytes", 10}}}}});
}

TEST_CASE("the division is between characters") {
  const TemporaryFolder folder;
  write_file(folder / "a",
             "中中中中");  // 12 bytes, half of which ends a character; a third of which does not
  prepare_text(std::vector{folder / "a"}, folder / "out", ByteTokens{}, 0.65);
  CHECK(text_of(folder / "out", "train.tokens") == "中中");
  CHECK(text_of(folder / "out", "validation.tokens") == "中中");
}

TEST_CASE("a tokenizer is trained on the training part, or an existing one used") {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 50; ++i) text += "the cat and the dog ";
  write_file(folder / "a", text);
  write_file(folder / "b", "zqzqzqzqzq");
  const std::vector<fs::path> texts = {folder / "a", folder / "b"};
  std::vector<std::string> said;
  const PreparedText trained = prepare_text(texts, folder / "trained", TrainedTokens{264}, 0.005,
                                            [&](std::string_view what) { said.emplace_back(what); });
  CHECK(said == std::vector<std::string>{"training a tokenizer of 264 tokens", "encoding 1010 bytes"});
  CHECK(trained.vocabulary == 264);
  CHECK(text_of(folder / "trained", "train.tokens") == text + "<|endoftext|>zqzq");
  CHECK(text_of(folder / "trained", "validation.tokens") == "zqzqzq");
  CHECK(TokenFile::open(folder / "trained/validation.tokens").size() ==
        6);  // zq was rare in the training part

  const PreparedText existing = prepare_text(texts, folder / "existing", TokensOf{folder / "trained"}, 0.005);
  CHECK(existing.train_tokens == trained.train_tokens);
  for (const char* file : {"train.tokens", "validation.tokens", "tokenizer.json", "vocab.json", "merges.txt"})
    CHECK(contents(folder / "existing" / file) == contents(folder / "trained" / file));
}

TEST_CASE("texts that cannot be prepared are refused, and nothing is written") {
  const TemporaryFolder folder;
  write_file(folder / "good", "some text");
  write_file(folder / "empty", "");
  write_file(folder / "short", "a");
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  const auto refusal = [&](const std::vector<fs::path>& texts, const TokenizerChoice& choice = ByteTokens{},
                           double part = 0.1) {
    return message_of([&] { prepare_text(texts, folder / "out", choice, part); });
  };
  CHECK(refusal({}) == "[prepare text] no text files were given");
  CHECK(refusal({folder / "good", folder / "none"}) ==
        (folder / "none").string() + ": no such file; check the path");
  CHECK(refusal({folder / "empty"}) == (folder / "empty").string() + ": is empty; give a file with text");
  for (const fs::path& path : {folder.path(), folder / "pipe", fs::path("/dev/null")})
    CHECK(refusal({path}) == path.string() + ": not a regular file; give text files, not folders or devices");
  CHECK(refusal({folder / "short"}) ==
        "[prepare text] 1 bytes of text are too few for a validation fraction of 0.1; give more text");
  for (double part : {0.0, 1.0, -1.0, std::nan("")})
    CHECK(contains(refusal({folder / "good"}, ByteTokens{}, part), "between 0 and 1"));
  CHECK(contains(refusal({folder / "good"}, TrainedTokens{300}),
                 "[tokenizer] cannot train a vocabulary of 300"));
  CHECK(contains(refusal({folder / "good"}, TokensOf{folder / "none"}), "cannot read: No such file"));
  CHECK(!fs::exists(folder / "out"));
}

}  // namespace
}  // namespace tegula::io
