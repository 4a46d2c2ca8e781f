// Tells a rank that is gone from one that is busy, and lets every other rank say what it was waiting for: a thread of each
// rank says to the next one, five times a second, that it is alive, whatever its workers do.
#pragma once

#include <mpi.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "framework/runtime/job.hpp"

namespace tegula::detail {

class Heartbeat {
 public:
  // Collective. Where the rank before this one is silent for longer than `limit` (0: for ever), the job fails with a message
  // that names it, its host, and what of it this rank waits for; every other rank says in a line what it waits for.
  Heartbeat(const Job& job, std::chrono::seconds limit);
  // Collective: returns when both neighbours have stopped, too.
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  // This rank fails. From the first on, it does not say what it waits for; the second lets the others do so, which takes a
  // moment. Nothing where no Heartbeat runs.
  static void fall_silent();
  static void announce_failure();

 private:
  using Clock = std::chrono::steady_clock;
  enum class Word : std::int8_t { alive, last, ending, gone };
  struct Beat {
    Word word;
    std::int32_t rank;  // who is gone
  };
  struct Sent {
    Beat beat;
    MPI_Request request;
  };

  void run();
  bool pause();
  void send(int rank, Word word, int about = -1);
  void progress();
  void hear(int from, const Beat& beat);
  void watch_neighbour();
  void tell_others(int gone);

  const Job& job_;
  const std::chrono::seconds limit_;
  const int next_, before_;
  MPI_Comm ring_ = MPI_COMM_NULL;
  std::string host_before_;

  // Of the thread.
  std::vector<std::unique_ptr<Sent>> sent_;  // on the way; MPI keeps their addresses
  Beat received_ = {};
  MPI_Request receiving_ = MPI_REQUEST_NULL;
  Clock::time_point now_, looked_, beaten_, heard_;
  std::optional<Clock::time_point> told_to_end_;
  bool said_last_ = false, heard_last_ = false, somebody_is_gone_ = false;

  std::mutex mutex_;
  std::condition_variable wake_, announced_;
  bool stopping_ = false, failing_ = false, announced_failure_ = false;
  std::thread thread_;
};

// What this rank waits for of `peer`, or of all ranks together (-1). `what` must live on; null: that `peer` takes a message.
std::uint64_t begin_waiting(int peer, const char* what);
void end_waiting(std::uint64_t id);

}  // namespace tegula::detail
