// Defaults for what StarPU and Open MPI can only be told through the environment.
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

namespace tegula::detail {

// Variables set for the life of the object.
class EnvironmentDefaults {
 public:
  EnvironmentDefaults() = default;
  EnvironmentDefaults(const EnvironmentDefaults&) = delete;
  EnvironmentDefaults& operator=(const EnvironmentDefaults&) = delete;
  ~EnvironmentDefaults() {
    for (const std::string& name : names_) unsetenv(name.c_str());
  }

  void set(const char* name, const std::string& value) {
    if (std::getenv(name)) return;
    override(name, value);
  }

  // Also over what the user has set, which is gone then.
  void override(const char* name, const std::string& value) {
    setenv(name, value.c_str(), 1);
    names_.emplace_back(name);
  }

 private:
  std::vector<std::string> names_;
};

}  // namespace tegula::detail
