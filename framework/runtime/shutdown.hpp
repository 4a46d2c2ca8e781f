// What the layers above have to release while StarPU still runs.
#pragma once

#include <functional>
#include <utility>
#include <vector>

namespace tegula::detail {

class ShutdownHooks {
 public:
  void add(std::function<void()> hook) { hooks_.push_back(std::move(hook)); }
  void run() {
    for (auto& hook : hooks_) hook();
    hooks_.clear();
  }

 private:
  std::vector<std::function<void()>> hooks_;
};

inline ShutdownHooks& before_shutdown() {
  static ShutdownHooks hooks;
  return hooks;
}

}  // namespace tegula::detail
