// Progress of a training run for a human: one line that renews itself on a terminal, a plain line every few
// seconds in a file or a pipe.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace tegula::io {

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

class Progress {
 public:
  // `quiet` prints nothing at all: for every rank but the first. `unit` is what a step consumes.
  Progress(std::int64_t total_steps, bool quiet, std::string unit = "images", std::FILE* out = stdout);
  ~Progress();

  // After each step; `items` is the number of units in it.
  void step(std::int64_t epoch, std::int64_t step, double loss, std::int64_t items);
  void step(std::int64_t step, std::int64_t items, const std::string& what);  // `what` says how it went
  // After a pause that is no step's time, an evaluation say.
  void resume();
  // A line that stays, whatever the progress line shows.
  void note(std::string_view line);

  // Items per second over the last second or so: a mean that follows changes and survives one slow step.
  double items_per_s() const { return items_per_s_; }

 private:
  void step(std::int64_t step, std::int64_t items, const std::string& what, const std::string& before);

  using Clock = std::chrono::steady_clock;

  std::int64_t total_steps_;
  std::string unit_;
  bool quiet_, terminal_;
  std::FILE* out_;
  Clock::time_point last_step_, last_print_;
  double items_per_s_ = 0, seconds_per_step_ = 0, measured_s_ = 0;
  bool open_line_ = false;  // the cursor stands behind a progress line
};

std::string duration(double seconds);  // 42s, 3m07s, 2h05m

}  // namespace tegula::io
