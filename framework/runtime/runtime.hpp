// Runtime: owns StarPU, MPI and this rank's share of the machine for the life of the object.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace tegula {

struct RuntimeOptions {
  int cpu_workers = -1;   // per rank; -1: every core of this rank's share
  int gpus = -1;          // per rank; -1: every GPU of this rank's share
  std::string scheduler;  // StarPU policy; empty: STARPU_SCHED, else dmdas with GPUs and lws without
  bool check_finite =
      false;  // look for NaN and infinities in what each CPU task writes: see first_non_finite()
  int silence_limit_s =
      20;  // how long another rank may show no sign of life before the job fails; 0: for ever
  bool print_table = true;  // the start-up table, on rank 0, to standard error
  std::string trace;        // folder to record what workers and messages do into; empty: nowhere
};

// A task output that held a NaN or an infinity.
struct NonFinite {
  std::uint64_t sequence;  // place of the task in the order of the program
  std::string task;        // its label
};

// Collective: every rank of the job constructs one at the same point, and only one exists at a time. The first one
// starts MPI, which ends with the process. An exception that leaves main unhandled on any rank ends the whole job,
// with one message; so does one that passes the destructor and is caught behind it, when the process exits.
class Runtime {
 public:
  // argc and argv go to MPI_Init. Throws std::runtime_error, with what to do, when an option cannot be met: no CPU
  // worker and no GPU left for this rank, a scheduler StarPU does not have.
  Runtime(int argc, char** argv, const RuntimeOptions& options = {});
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  int rank() const;
  int size() const;         // ranks in the job
  int cpu_workers() const;  // of this rank
  int gpus() const;         // of this rank
  const std::string& scheduler() const;

  // Whether this program was built for SimGrid: tasks and messages take the time that they would on a described cluster
  // (docs/simulation.md), but kernels do not run, so that all values are 0.
  static bool simulated();

  bool traced() const;  // whether a trace is recorded
  // Puts a fact about the run into the trace; does nothing where none is recorded. docs/traces.md lists the keys that
  // the tools know: plan, gemm_peak_gflops, results.
  void note_in_trace(const std::string& key, const std::string& value);
  void note_in_trace(const std::string& key, double value);

  // Waits for all submitted tasks and messages of this rank, then rethrows the first error recorded in a kernel.
  void wait();
  // Waits until at most `tasks` submitted tasks are unfinished; rethrows as wait() does.
  void wait_until_pending(int tasks);
  int pending() const;  // how many are

  // Largest `code` that any rank has passed, the same on all ranks, agreed without stopping the
  // pipeline: the answer to call i uses the codes given up to call i - lag. Every rank calls it at the same
  // points (once a step). SIGINT, SIGTERM and SIGUSR1 count as code `interrupt_code`; two signals end the job at once.
  int agree(int code = 0);
  static constexpr int interrupt_code = 1, failure_code = 2;
  int signal_received() const;  // SIGINT, SIGTERM, SIGUSR1 or 0, on this rank

  // Collective: the earliest non-finite output on any rank since the last call, if check_finite is on.
  std::optional<NonFinite> first_non_finite();

  // First of the `tags_reserved` tags of messages that no other caller gets: what is in flight at the same time cannot be
  // mistaken for each other. Every rank calls it at the same points.
  std::int64_t reserve_tags();
  static constexpr std::int64_t tags_reserved = std::int64_t{1} << 44;

  // Collective: element-wise sums over all ranks, for reports and tests.
  void sum_over_ranks(double* values, int count);
  void barrier();

  // Collective: bytes of payload sent by and to this rank so far, as StarPU counts them (STARPU_MPI_STATS) when it
  // hands them to MPI; complete after a wait() on every rank.
  struct Traffic {
    std::uint64_t sent, received;
  };
  Traffic traffic() const;
  // Bytes of tiles and of workers' scratch in main memory now, as StarPU counts them.
  std::int64_t tile_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Runs the body of a main function: `return tegula::run([&] { Runtime runtime(argc, argv); ...; return 0; });` An
// exception is reported in one line, without the core dump of an unhandled one, and ends the job with exit code 1.
int run(const std::function<int()>& program);

// Rank of this process read from the launcher's environment: valid before MPI starts (0 without a launcher).
int launched_rank();

}  // namespace tegula
