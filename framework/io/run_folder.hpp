// The folder of one training run: config.toml, metrics.jsonl, and whatever the program adds. Rank 0 has it; on the
// others the object does nothing, so that programs need not ask who they are.
#pragma once

#include <cstdint>
#include <ctime>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "framework/io/file.hpp"

namespace tegula::io {

class RunFolder {
 public:
  // Creates the folder and writes `config` (Options::toml()) into it. An empty path means runs/NAME-DATE. Throws
  // std::runtime_error if it cannot be written to. metrics.jsonl starts afresh or, where a run goes on behind step
  // `resumed`, keeps its lines up to that step.
  RunFolder(const std::filesystem::path& path, const std::string& name, const std::string& config,
            bool active, std::int64_t resumed = -1);

  bool active() const { return metrics_.has_value(); }
  const std::filesystem::path& path() const { return path_; }

  // The last line of metrics.jsonl that a resumed run has kept, or nothing.
  const std::string& last_kept() const { return last_kept_; }

  // Adds a line to metrics.jsonl.
  void record(const nlohmann::ordered_json& line);
  // Writes a JSON file.
  void write(const std::string& file, const nlohmann::ordered_json& contents) const;

 private:
  std::filesystem::path path_;
  std::optional<LineFile> metrics_;
  std::string last_kept_;
};

std::string date_and_time(std::time_t time);  // local, as 20261130-221530

// The digits that C's %a prints: a number exactly, for comparing runs bit by bit.
std::string hex_float(double value);

}  // namespace tegula::io
