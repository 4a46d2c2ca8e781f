// Options of a program: each is a flag of the command line and a key of an optional TOML file (--config
// FILE). Flags win over the file, the file over the defaults. What came out of it can be saved and fed back.
//
//   io::Options options("gpt", "Trains a small GPT.");
//   options.add("batch", &batch, "sequences per step")->check(io::at_least(1));
//   options.add("tile", &tiles, "tile size of an axis");  // --tile AXIS=N, or a table [tile] in the file
//   if (auto code = options.parse(argc, argv)) return *code;
#pragma once

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <CLI/Validators.hpp>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace tegula::io {

// AXIS=N pairs, in the order given: the tile sizes of axes, the extents of a mesh.
using NamedNumbers = std::vector<std::pair<std::string, std::int64_t>>;

// For numbers that may not fall below `minimum`; its message is kinder than CLI::PositiveNumber's.
CLI::Validator at_least(std::int64_t minimum);

class Options {
 public:
  static constexpr int usage_error = 2;  // exit code, as of most command line tools

  // `quiet` parses without printing: for every rank but the first.
  Options(const std::string& program, const std::string& description, bool quiet = false);

  // An option --name whose default is what `variable` holds. `variable` must outlive the object. The
  // validators of the returned option (at_least, CLI::IsMember, ...) hold for flags and files alike.
  using Variable = std::variant<std::int64_t*, double*, std::string*, bool*, NamedNumbers*>;
  CLI::Option* add(const std::string& name, Variable variable, const std::string& help);

  // Sets the variables. Returns the exit code where the program should end now: after --help, or after an
  // error, which has been explained on stderr.
  [[nodiscard]] std::optional<int> parse(int argc, const char* const* argv);

  // The same from TOML text, for options that parse() has not seen on the command line. Throws
  // std::runtime_error starting with "name:line:".
  void apply_toml(const std::string& text, const std::string& name);

  // All options and their values as TOML, in the order of the add() calls.
  std::string toml() const;

 private:
  struct Entry {
    std::string name;
    Variable variable;
    CLI::Option* option;
  };

  std::string did_you_mean(const std::string& name) const;

  CLI::App app_;
  bool quiet_;
  std::string config_file_;
  std::vector<Entry> entries_;
};

}  // namespace tegula::io
