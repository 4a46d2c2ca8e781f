#include "framework/io/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace tegula::io {

namespace {
constexpr double terminal_interval_s = 0.1, plain_interval_s = 5.0;
constexpr double memory_s = 1.0;  // time constant of the speed shown
}  // namespace

Progress::Progress(std::int64_t total_steps, bool quiet, std::string unit, std::FILE* out)
    : total_steps_(total_steps),
      unit_(std::move(unit)),
      quiet_(quiet),
      terminal_(::isatty(::fileno(out)) == 1),
      out_(out),
      last_step_(Clock::now()),
      last_print_() {}

Progress::~Progress() {
  if (open_line_) std::fputc('\n', out_);
}

void Progress::step(std::int64_t epoch, std::int64_t step, double loss, std::int64_t items) {
  this->step(step, items, fmt::format("loss {:.4f}", loss), fmt::format("epoch {}  ", epoch));
}

void Progress::step(std::int64_t step, std::int64_t items, const std::string& what) {
  this->step(step, items, what, "");
}

void Progress::step(std::int64_t step, std::int64_t items, const std::string& what,
                    const std::string& before) {
  const auto now = Clock::now();
  const double elapsed = std::max(std::chrono::duration<double>(now - last_step_).count(), 1e-9);
  measured_s_ += elapsed;
  // The plain mean at first, then one that forgets.
  const double weight = std::max(elapsed / measured_s_, 1 - std::exp(-elapsed / memory_s));
  last_step_ = now;
  items_per_s_ += weight * (static_cast<double>(items) / elapsed - items_per_s_);
  seconds_per_step_ += weight * (elapsed - seconds_per_step_);

  const double since_print = std::chrono::duration<double>(now - last_print_).count();
  if (quiet_ || (since_print < (terminal_ ? terminal_interval_s : plain_interval_s) && step < total_steps_))
    return;
  last_print_ = now;
  const double left_s = seconds_per_step_ * static_cast<double>(total_steps_ - step);
  const std::string line = fmt::format("{}step {}/{}  {}  {:.0f} {}/s  ETA {}", before, step, total_steps_,
                                       what, items_per_s_, unit_, duration(left_s));
  if (terminal_)
    fmt::print(out_, "\r{}\x1b[K", line);  // back to the start, and erase what was longer
  else
    fmt::print(out_, "{}\n", line);
  std::fflush(out_);
  open_line_ = terminal_;
}

void Progress::resume() { last_step_ = Clock::now(); }

void Progress::note(std::string_view line) {
  if (quiet_) return;
  fmt::print(out_, "{}{}\n", open_line_ ? "\r\x1b[K" : "", line);
  std::fflush(out_);
  open_line_ = false;
}

std::string duration(double seconds) {
  if (!std::isfinite(seconds)) return "?";
  const auto s = static_cast<std::int64_t>(std::llround(seconds));
  if (s < 60) return fmt::format("{}s", s);
  if (s < 3600) return fmt::format("{}m{:02}s", s / 60, s % 60);
  return fmt::format("{}h{:02}m", s / 3600, s % 3600 / 60);
}

}  // namespace tegula::io
