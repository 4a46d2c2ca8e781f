#include "framework/io/run_folder.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>

namespace tegula::io {

namespace {

std::string date_and_time() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  char text[32];
  std::strftime(text, sizeof text, "%Y%m%d-%H%M%S", &local);
  return text;
}

}  // namespace

RunFolder::RunFolder(const std::filesystem::path& path, const std::string& name, const std::string& config,
                     bool active)
    : path_(path.empty() ? std::filesystem::path("runs") / (name + "-" + date_and_time()) : path) {
  if (!active) return;
  make_writable_folder(path_);
  write_file(path_ / "config.toml", config);
  metrics_.emplace(path_ / "metrics.jsonl");
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
