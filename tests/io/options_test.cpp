#include "framework/io/options.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "tests/io/temporary_folder.hpp"

namespace tegula::io {
namespace {

struct Fixture {
  std::int64_t batch = 256;
  double rate = 0.1;
  std::string model = "mlp";
  bool report = false;
  NamedNumbers tile;
  Options options{"program", "A program.", /*quiet=*/true};

  Fixture() {
    options.add("batch", &batch, "images per step")->check(at_least(1));
    options.add("learning-rate", &rate, "step size");
    options.add("model", &model, "which")->check(CLI::IsMember({"mlp", "cnn"}));
    options.add("report", &report, "print it");
    options.add("tile", &tile, "tile size of an axis");
  }
  std::optional<int> parse(std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), "program");
    return options.parse(static_cast<int>(arguments.size()), arguments.data());
  }
};

std::string toml_error(const std::string& text) {
  return message_of([&] { Fixture().options.apply_toml(text, "run.toml"); });
}

TEST_CASE_FIXTURE(Fixture, "flags set variables, the last of a repeated one wins") {
  CHECK(!parse({"--batch", "64", "--learning-rate=0.5", "--tile", "batch=32", "--tile", "hidden=128",
                "--report", "--tile", "batch=16"}));
  CHECK(batch == 64);
  CHECK(rate == 0.5);
  CHECK(report);
  CHECK(tile == NamedNumbers{{"batch", 16}, {"hidden", 128}});
}

TEST_CASE("wrong command lines end with the code for wrong usage") {
  for (const auto& wrong : std::vector<std::vector<const char*>>{{"--bacth", "1"},
                                                                 {"extra"},
                                                                 {"--batch", "0"},
                                                                 {"--batch", "1.5"},
                                                                 {"--batch"},
                                                                 {"--model", "rnn"},
                                                                 {"--tile", "batch"},
                                                                 {"--tile", "batch=0"},
                                                                 {"--tile", "=4"},
                                                                 {"--config", "/nowhere.toml"}}) {
    CAPTURE(wrong.front());
    CHECK(Fixture().parse(wrong) == Options::usage_error);
  }
  CHECK(Fixture().parse({"--help"}) == 0);
}

TEST_CASE_FIXTURE(Fixture, "a file sets what the command line left open") {
  const TemporaryFolder folder;
  std::ofstream(folder / "run.toml") << "batch = 64\nlearning-rate = 1\n[tile]\nwidth = 8\nbatch = 32\n";
  const std::string path = (folder / "run.toml").string();
  CHECK(!parse({"--config", path.c_str(), "--batch", "128", "--tile", "batch=16"}));
  CHECK(batch == 128);
  CHECK(rate == 1);
  CHECK(tile == NamedNumbers{{"width", 8}, {"batch", 16}});  // in the order of the file
}

TEST_CASE("errors in a file name it, the line, the key and the nearest one") {
  CHECK(toml_error("batch = 4\n\nlearning_rate = 2") ==
        "run.toml:3: unknown key 'learning_rate'; did you mean 'learning-rate'?");
  CHECK(contains(toml_error("config = 'x'"), "unknown key 'config'"));
  CHECK(toml_error("batch = 0") == "run.toml:1: 'batch': --batch: must be a number >= 1, not '0'");
  CHECK(toml_error("batch = 1.5") == "run.toml:1: 'batch': expects an integer");
  CHECK(toml_error("batch = '8'") == "run.toml:1: 'batch': expects an integer");
  CHECK(toml_error("learning-rate = 'x'") == "run.toml:1: 'learning-rate': expects a number");
  CHECK(toml_error("model = 1") == "run.toml:1: 'model': expects a string");
  CHECK(contains(toml_error("model = 'rnn'"), "run.toml:1: 'model': --model: rnn not in {mlp,cnn}"));
  CHECK(toml_error("report = 1") == "run.toml:1: 'report': expects true or false");
  CHECK(toml_error("tile = 4") == "run.toml:1: 'tile': expects a table of NAME = N");
  CHECK(toml_error("\n[tile]\nbatch = 'x'") == "run.toml:2: 'tile': expects an integer for 'batch'");
  CHECK(contains(toml_error("[tile]\nbatch = 0"), "'batch=0' is not NAME=N with N >= 1"));
  CHECK(contains(toml_error("batch ="), "run.toml:1: not valid TOML: "));
}

TEST_CASE_FIXTURE(Fixture, "the resolved options can be fed back") {
  model = "cnn";
  rate = 1e-30;
  report = true;
  tile = {{"width", 8}, {"a b", 16}};
  const std::string text = options.toml();
  CHECK(text ==
        "batch = 256\nlearning-rate = 1e-30\nmodel = \"cnn\"\nreport = true\n"
        "tile = { width = 8, \"a b\" = 16 }\n");
  Fixture other;
  other.options.apply_toml(text, "config.toml");
  CHECK(other.options.toml() == text);
  rate = -0.0;
  Fixture negative;
  negative.options.apply_toml(options.toml(), "config.toml");
  CHECK(std::signbit(negative.rate));
  Fixture defaults;
  defaults.options.apply_toml(Fixture().options.toml(), "config.toml");
  CHECK(defaults.tile.empty());
}

}  // namespace
}  // namespace tegula::io
