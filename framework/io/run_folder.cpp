#include "framework/io/run_folder.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

namespace tegula::io {

namespace {

// The lines of a metrics.jsonl up to a step; what follows, a torn line at the end included, belongs to work that was lost.
std::string lines_until(const std::filesystem::path& file, std::int64_t step) {
  if (!std::filesystem::exists(file)) return {};
  std::istringstream in(read_text(file));
  std::string kept;
  for (std::string line; std::getline(in, line);) {
    const auto parsed = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!parsed.is_object() || !parsed.contains("step") || !parsed["step"].is_number() ||
        parsed["step"] > step)
      break;
    kept += line + "\n";
  }
  return kept;
}

}  // namespace

std::string date_and_time(std::time_t time) {
  std::tm local{};
  ::localtime_r(&time, &local);
  char text[32];
  std::strftime(text, sizeof text, "%Y%m%d-%H%M%S", &local);
  return text;
}

RunFolder::RunFolder(const std::filesystem::path& path, const std::string& name, const std::string& config,
                     bool active, std::int64_t resumed)
    : path_(path.empty() ? std::filesystem::path("runs") / (name + "-" + date_and_time(std::time(nullptr)))
                         : path) {
  if (!active) return;
  make_writable_folder(path_);
  write_file(path_ / "config.toml", config);
  const std::filesystem::path metrics = path_ / "metrics.jsonl";
  if (resumed >= 0) {
    const std::string kept = lines_until(metrics, resumed);
    write_file(metrics, kept);
    if (!kept.empty()) {
      const std::size_t begin = kept.rfind('\n', kept.size() - 2) + 1;
      last_kept_ = kept.substr(begin, kept.size() - 1 - begin);
    }
  }
  metrics_.emplace(metrics, resumed >= 0 ? LineFile::Mode::append : LineFile::Mode::fresh);
}

void RunFolder::record(const nlohmann::ordered_json& line) {
  if (metrics_) metrics_->add(line.dump());
}

void RunFolder::write(const std::string& file, const nlohmann::ordered_json& contents) const {
  if (metrics_) write_file(path_ / file, contents.dump(2) + "\n");
}

std::string hex_float(double value) {
  char text[64];
  std::snprintf(text, sizeof text, "%a", value);
  return text;
}

}  // namespace tegula::io
