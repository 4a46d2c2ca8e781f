// What tasks report about themselves: the first exception of a kernel, the first output that is not finite. One
// object per process, as StarPU has one instance per process, because a kernel is given nothing but its tiles.
#pragma once

#include <atomic>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>

#include "framework/runtime/runtime.hpp"

namespace tegula::detail {

class TaskMonitor {
 public:
  // True once a kernel has thrown: tasks that start later return at once, for their inputs are worthless.
  bool failed() const { return failed_.load(std::memory_order_relaxed); }

  void record_error(std::exception_ptr error) {
    std::scoped_lock lock(mutex_);
    if (!error_) error_ = std::move(error);
    failed_.store(true, std::memory_order_relaxed);
  }

  // Throws the recorded error, once. Tasks run again afterwards.
  void rethrow() {
    if (!failed()) return;
    std::scoped_lock lock(mutex_);
    failed_.store(false, std::memory_order_relaxed);
    if (auto error = std::exchange(error_, nullptr)) std::rethrow_exception(error);
  }

  std::atomic<bool> check_finite = false;

  void record_non_finite(NonFinite found) {
    std::scoped_lock lock(mutex_);
    if (!non_finite_ || found.sequence < non_finite_->sequence) non_finite_ = std::move(found);
  }
  std::optional<NonFinite> take_non_finite() {
    std::scoped_lock lock(mutex_);
    return std::exchange(non_finite_, std::nullopt);
  }

 private:
  std::atomic<bool> failed_ = false;
  std::mutex mutex_;
  std::exception_ptr error_;
  std::optional<NonFinite> non_finite_;
};

inline TaskMonitor& task_monitor() {
  static TaskMonitor monitor;
  return monitor;
}

}  // namespace tegula::detail
