// A folder that all ranks of one test see, removed with all it holds.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>

#include "framework/runtime/runtime.hpp"

namespace tegula::test {

class SharedFolder {
 public:
  // Ranks have the launcher for a parent.
  explicit SharedFolder(Runtime& runtime)
      : runtime_(runtime),
        path_(std::filesystem::temp_directory_path() / ("tegula-ranks-" + std::to_string(::getppid()))) {
    if (runtime.rank() == 0) {
      std::filesystem::remove_all(path_);
      std::filesystem::create_directories(path_);
    }
    runtime.barrier();
  }
  ~SharedFolder() {
    runtime_.barrier();
    std::error_code ignored;
    if (runtime_.rank() == 0) std::filesystem::remove_all(path_, ignored);
  }
  SharedFolder(const SharedFolder&) = delete;
  SharedFolder& operator=(const SharedFolder&) = delete;

  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

  // Does something on rank 0 that all then see.
  template <class F>
  void once(F&& f) const {
    runtime_.barrier();
    if (runtime_.rank() == 0) f();
    runtime_.barrier();
  }

 private:
  Runtime& runtime_;
  std::filesystem::path path_;
};

}  // namespace tegula::test
