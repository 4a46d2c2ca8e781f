// The MPI job this process belongs to: how it begins, how it ends well, and how it ends when a rank fails.
#pragma once

#include <mpi.h>

#include <chrono>
#include <string>

namespace tegula::detail {

// MPI can start only once per process, so the first Runtime starts it and the exit of the process ends it.
class Job {
 public:
  // Starts MPI, unless it runs already. Collective.
  static Job& start(int argc, char** argv);
  // The job that start() has started.
  static const Job& current();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  ~Job();

  int rank = 0, size = 1;
  MPI_Comm tasks = MPI_COMM_NULL;    // for the messages of StarPU
  MPI_Comm control = MPI_COMM_NULL;  // for ours

  // Whether StarPU is started with MPI: simulated, that is how it is started at all.
  bool messages() const;

  // While a Runtime lives, the process may not leave without telling its peers: an exit then aborts the job.
  void set_busy(bool busy) { busy_ = busy; }

  int signal_received() const;  // SIGINT, SIGTERM or 0

  // Waits for `request` without keeping a core busy: ranks may share one. `what` of all ranks it waits for is told when
  // one of them is gone, and must live on.
  void complete(MPI_Request& request, const char* what) const;

 private:
  Job(int argc, char** argv);
  bool owns_mpi_ = false, busy_ = false;
};

// Prints `tegula: rank R on HOST: message`.
void say(const std::string& message);

// Says the message (nothing, if it is empty), has the others say what they wait for, and ends the other ranks and, if there are
// any, this process, with exit code 1. Returns that code otherwise. Where all ranks fail alike, as they do for most
// mistakes of users, only rank 0 speaks.
int fail(const std::string& message);

// Ranks on this node, as the launcher's environment tells before MPI starts (1 without a launcher).
int launched_ranks_on_node();

}  // namespace tegula::detail
