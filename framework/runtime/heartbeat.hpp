// Tells a rank that has stopped from one that is busy: a thread of each rank says to the next one, once a second, that it is
// alive, whatever its workers do.
#pragma once

#include <mpi.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "framework/runtime/job.hpp"

namespace tegula::detail {

class Heartbeat {
 public:
  // Collective. Where the rank before this one is silent for longer than `limit`, the job fails with a message that names it,
  // its host, and what of it this rank waits for.
  Heartbeat(const Job& job, std::chrono::seconds limit);
  // Collective: returns when both neighbours have stopped, too.
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

 private:
  void beat();
  void exchange_hosts();

  const Job& job_;
  std::chrono::seconds limit_;
  MPI_Comm ring_ = MPI_COMM_NULL;
  std::string host_before_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::thread thread_;
};

// Messages that this rank waits for. `what` must live on.
std::uint64_t begin_waiting(int peer, const char* what);
void end_waiting(std::uint64_t id);

}  // namespace tegula::detail
