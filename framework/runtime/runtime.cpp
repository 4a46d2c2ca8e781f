#include "framework/runtime/runtime.hpp"

#include <fmt/format.h>
#include <malloc.h>
#include <starpu.h>
#include <starpu_mpi.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "framework/runtime/environment.hpp"
#include "framework/runtime/heartbeat.hpp"
#include "framework/runtime/job.hpp"
#include "framework/runtime/node_share.hpp"
#include "framework/runtime/shutdown.hpp"
#include "framework/runtime/simulated.hpp"
#include "framework/runtime/startup_table.hpp"
#include "framework/runtime/task_monitor.hpp"
#include "framework/runtime/trace.hpp"
#include "framework/runtime/waiting.hpp"

// StarPU prints its message statistics at shutdown once they were switched on. This is how it forgets them; the
// function is exported though not declared.
extern "C" __attribute__((weak)) void _starpu_mpi_comm_amounts_shutdown();
// OpenMP may be there only because oneDNN or OpenBLAS brings it.
extern "C" __attribute__((weak)) void omp_set_num_threads(int);

namespace tegula {
namespace {

std::string scheduler_names() {
  std::vector<std::string> names;
  for (starpu_sched_policy** policy = starpu_sched_get_predefined_policies(); *policy; ++policy)
    names.emplace_back((*policy)->policy_name);
  std::ranges::sort(names);
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  return list;
}

// Null for a scheduler that the user brings in a library of his own.
const starpu_sched_policy* find_scheduler(const std::string& name) {
  for (starpu_sched_policy** policy = starpu_sched_get_predefined_policies(); *policy; ++policy)
    if (name == (*policy)->policy_name) return *policy;
  if (std::getenv("STARPU_SCHED_LIB")) return nullptr;
  throw std::runtime_error(
      fmt::format("[runtime] there is no scheduler '{}'; StarPU has: {}", name, scheduler_names()));
}

// StarPU keeps its performance models in the user's home and aborts where it cannot write there.
void provide_model_directory(detail::EnvironmentDefaults& environment) {
  for (const char* name : {"XDG_CACHE_HOME", "STARPU_HOME", "HOME"})
    if (const char* home = std::getenv(name)) {
      const std::filesystem::path models = std::filesystem::path(home) / ".starpu";
      if (access(home, W_OK) == 0 || access(models.c_str(), W_OK) == 0) return;
      break;
    }
  environment.set("STARPU_PERF_MODEL_DIR",
                  std::filesystem::temp_directory_path() / fmt::format("starpu-models-{}", getuid()));
}

// Activations are given back and asked for again in every step. malloc would return each to the kernel and
// every first touch of a page would fault again.
void keep_freed_memory() {
  mallopt(M_MMAP_THRESHOLD, 32 << 20);  // glibc's maximum
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  // An arena of a thread's own would be given back when it is empty, whatever the threshold.
  mallopt(M_ARENA_MAX, 1);
}

// Ring of the collectives that agree() has in flight.
struct Vote {
  int code = 0, agreed = 0;
  MPI_Request request = MPI_REQUEST_NULL;
};
constexpr std::size_t vote_lag = 8;

}  // namespace

struct Runtime::State {
  explicit State(detail::Job& job_) : job(job_) {}
  ~State() {
    if (running) shut_down();
  }

  void start(const RuntimeOptions& options, int argc, char** argv);
  void choose_workers(const RuntimeOptions& options, const detail::NodeShare& share, starpu_conf& conf);
  void choose_scheduler(const RuntimeOptions& options, starpu_conf& conf);
  void shut_down();
  void write_trace() const;
  void wait_for_all() const {
    if (job.messages())
      starpu_mpi_wait_for_all(job.tasks);
    else
      starpu_task_wait_for_all();
  }

  detail::Job& job;
  detail::EnvironmentDefaults environment;
  std::string scheduler;
  starpu_sched_policy policy = {};  // must outlive StarPU
  int cpu_workers = 0, gpus = 0;
  bool running = false;
  std::optional<detail::Heartbeat> heartbeat;
  std::optional<detail::Trace> trace;
  int exceptions_at_start = std::uncaught_exceptions();
  std::array<Vote, vote_lag> votes;
  std::uint64_t votes_cast = 0;
  int agreed = 0;
  std::int64_t next_tag = 0;
};

// How many workers this rank has, and where: what the options ask for, else what the environment does, else its share.
void Runtime::State::choose_workers(const RuntimeOptions& options, const detail::NodeShare& share,
                                    starpu_conf& conf) {
  const int cores = static_cast<int>(share.cores.size());
  gpus = static_cast<int>(share.gpus.size());
  if (conf.ncuda >= 0) gpus = std::min(gpus, conf.ncuda);
  if (options.gpus > gpus)
    throw std::runtime_error(
        fmt::format("[runtime] rank {} was asked for {} GPUs, its share of the node is {}", job.rank,
                    options.gpus, gpus));
  if (options.gpus >= 0) gpus = options.gpus;

  // The thread that drives messages polls: worth a core where there are several.
  const int message_cores = job.size > 1 && cores >= 4 && !share.shared ? 1 : 0;
  const int all = share.shared ? 1 : std::max(cores - gpus - message_cores, 1);
  cpu_workers = options.cpu_workers != -1 ? options.cpu_workers : conf.ncpus >= 0 ? conf.ncpus : all;
  if (cpu_workers < 0 || cpu_workers > STARPU_MAXCPUS)
    throw std::runtime_error(fmt::format("[runtime] cpu_workers is {}: give 0 to {}, or -1 for every core",
                                         cpu_workers, STARPU_MAXCPUS));
  if (cpu_workers == 0 && gpus == 0)
    throw std::runtime_error(
        fmt::format("[runtime] no CPU worker and no GPU is left for rank {}: ask for at least one "
                    "(cpu_workers, or the variable STARPU_NCPU)",
                    job.rank));

  conf.ncpus = cpu_workers;
  conf.ncuda = gpus;
  if (detail::simulated) return;  // there is nothing to bind to
  conf.nopencl = conf.nhip = 0;
  conf.use_explicit_workers_cuda_gpuid = gpus > 0;
  std::ranges::copy(share.gpus, conf.workers_cuda_gpuid);
  // Workers take these in turn, then the message thread.
  conf.use_explicit_workers_bindid = 1;
  for (int i = 0; i < STARPU_NMAXWORKERS; ++i) conf.workers_bindid[i] = share.cores[i % cores];
  const bool bound = !share.shared && cpu_workers + gpus <= cores;
  const bool own_message_core = bound && cpu_workers + gpus < cores;
  environment.set("STARPU_WORKERS_GETBIND", "0");  // share_node() has looked at the binding
  if (!bound) environment.set("STARPU_WORKERS_NOBIND", "1");
  if (!own_message_core) environment.set("STARPU_MPI_NOBIND", "1");
  detail::pause_between_message_tests(!own_message_core);
}

void Runtime::State::choose_scheduler(const RuntimeOptions& options, starpu_conf& conf) {
  const char* from_environment = std::getenv("STARPU_SCHED");
  scheduler = !options.scheduler.empty()              ? options.scheduler
              : from_environment && *from_environment ? from_environment
              : gpus > 0                              ? "dmdas"
                                                      : "lws";
  const starpu_sched_policy* found = find_scheduler(scheduler);
  conf.sched_policy_name = scheduler.c_str();
  if (found && gpus == 0 && !detail::simulated) {  // a worker that also watches a GPU must not sleep
    policy = detail::sleeping_when_idle(*found);
    conf.sched_policy_name = nullptr;
    conf.sched_policy = &policy;
  }
  if (detail::simulated) return;  // costs come from the cluster's file
  environment.set("STARPU_CALIBRATE", "1");
  conf.calibrate = std::atoi(std::getenv("STARPU_CALIBRATE"));
  if (!std::getenv("STARPU_PERF_MODEL_DIR")) provide_model_directory(environment);
}

void Runtime::State::start(const RuntimeOptions& options, int argc, char** argv) {
  if (!options.trace.empty()) trace.emplace(options.trace, job, argc, argv, environment);
  starpu_conf conf;
  starpu_conf_init(&conf);  // takes over what the user has set in the environment
  conf.precedence_over_environment_variables = 1;
  conf.catch_signals = 0;
  environment.set("STARPU_SILENT", "1");
  const detail::NodeShare share = detail::share_node(job);
  choose_workers(options, share, conf);
  choose_scheduler(options, conf);
  keep_freed_memory();

  const int failed =
      job.messages() ? starpu_mpi_init_conf(nullptr, nullptr, 0, job.tasks, &conf) : starpu_init(&conf);
  if (failed)
    throw std::runtime_error(
        fmt::format("[runtime] StarPU cannot start {} CPU and {} GPU workers on rank {}: {}", cpu_workers,
                    gpus, job.rank, std::strerror(-failed)));
  running = true;
  if (trace) trace->started(cpu_workers, gpus, scheduler);
  job.set_busy(true);
  if (job.size > 1) starpu_mpi_comm_stats_enable();
  // A task is one thread's work; parallelism is between tasks.
  if (omp_set_num_threads && !detail::simulated)
    starpu_execute_on_each_worker([](void*) { omp_set_num_threads(1); }, nullptr, STARPU_CPU);
  if (job.size > 1 && !detail::simulated)
    heartbeat.emplace(job, std::chrono::seconds(options.silence_limit_s));
  detail::task_monitor().check_finite = options.check_finite && !detail::simulated;
  if (options.print_table && !detail::simulated)
    detail::print_startup_table(job, {share.node, share.nodes, cpu_workers, gpus, scheduler});
}

void Runtime::State::shut_down() {
  wait_for_all();
  try {
    detail::task_monitor().rethrow();
  } catch (const std::exception& error) {
    fmt::print(stderr, "tegula: rank {}: an error that no wait() reported: {}\n", job.rank, error.what());
  } catch (...) {
    fmt::print(stderr, "tegula: rank {}: a kernel failed, and no wait() reported it\n", job.rank);
  }
  for (Vote& vote : votes)
    if (vote.request != MPI_REQUEST_NULL) job.complete(vote.request, "a vote");
  detail::before_shutdown().run();
  heartbeat.reset();
  if (job.messages()) {
    if (!std::getenv("STARPU_MPI_STATS") && _starpu_mpi_comm_amounts_shutdown) {
      starpu_mpi_comm_stats_disable();
      _starpu_mpi_comm_amounts_shutdown();
    }
    starpu_mpi_shutdown_comm(job.tasks);
  } else {
    starpu_shutdown();
  }
  running = false;
  if (trace) write_trace();
  job.set_busy(false);
}

// The run has succeeded, whatever becomes of its trace: a destructor that threw would end the job instead.
void Runtime::State::write_trace() const {
  try {
    trace->write();
  } catch (const std::exception& error) {
    detail::say(fmt::format("the trace was lost: {}", error.what()));
  }
}

Runtime::Runtime(int argc, char** argv, const RuntimeOptions& options) {
  if (starpu_is_initialized()) throw std::logic_error("[runtime] a Runtime exists already: one at a time");
  state_ = std::make_unique<State>(detail::Job::start(argc, argv));
  state_->start(options, argc, argv);
}

Runtime::~Runtime() {
  // An exception is leaving while peers wait for messages of ours that will not come: waiting for theirs would hang.
  // Everything is left as it is, for whoever catches to report; the exit of the process then aborts the job.
  if (state_->job.size > 1 && std::uncaught_exceptions() > state_->exceptions_at_start)
    static_cast<void>(state_.release());
}

int Runtime::rank() const { return state_->job.rank; }
int Runtime::size() const { return state_->job.size; }
int Runtime::cpu_workers() const { return state_->cpu_workers; }
int Runtime::gpus() const { return state_->gpus; }
const std::string& Runtime::scheduler() const { return state_->scheduler; }

bool Runtime::simulated() { return detail::simulated; }

bool Runtime::traced() const { return state_->trace.has_value(); }
void Runtime::note_in_trace(const std::string& key, const std::string& value) {
  if (state_->trace) state_->trace->note(key, value);
}
void Runtime::note_in_trace(const std::string& key, double value) {
  if (state_->trace) state_->trace->note(key, value);
}

void Runtime::wait() {
  state_->wait_for_all();
  detail::task_monitor().rethrow();
}

void Runtime::wait_until_pending(int tasks) {
  starpu_task_wait_for_n_submitted(tasks);
  detail::task_monitor().rethrow();
}

int Runtime::pending() const { return starpu_task_nsubmitted(); }

int Runtime::agree(int code) {
  State& s = *state_;
  if (s.job.signal_received() != 0) code = std::max(code, interrupt_code);
  // Simulated ranks all do alike.
  if (s.job.size == 1 || detail::simulated) return s.agreed = std::max(s.agreed, code);
  Vote& vote = s.votes[s.votes_cast++ % vote_lag];  // the one cast `vote_lag` calls ago
  if (vote.request != MPI_REQUEST_NULL) {
    s.job.complete(vote.request, "a vote");
    s.agreed = std::max(s.agreed, vote.agreed);
  }
  vote.code = code;
  MPI_Iallreduce(&vote.code, &vote.agreed, 1, MPI_INT, MPI_MAX, s.job.control, &vote.request);
  return s.agreed;
}

int Runtime::signal_received() const { return state_->job.signal_received(); }

std::optional<NonFinite> Runtime::first_non_finite() {
  wait();
  std::optional<NonFinite> mine = detail::task_monitor().take_non_finite();
  const detail::Job& job = state_->job;
  if (detail::simulated) return std::nullopt;
  constexpr std::uint64_t none = UINT64_MAX;
  std::vector<std::uint64_t> sequences(job.size);
  const std::uint64_t sequence = mine ? mine->sequence : none;
  MPI_Request request;
  MPI_Iallgather(&sequence, 1, MPI_UINT64_T, sequences.data(), 1, MPI_UINT64_T, job.control, &request);
  job.complete(request, "findings of NaN");
  const auto first = std::ranges::min_element(sequences);
  if (*first == none) return std::nullopt;
  const int owner = static_cast<int>(first - sequences.begin());
  std::array<char, 256> label = {};
  if (owner == job.rank) mine->task.copy(label.data(), label.size() - 1);
  MPI_Ibcast(label.data(), label.size(), MPI_CHAR, owner, job.control, &request);
  job.complete(request, "findings of NaN");
  return NonFinite{*first, label.data()};
}

void Runtime::sum_over_ranks(double* values, int count) {
  if (detail::simulated)
    return detail::sum_over_simulated_ranks(state_->job.rank, state_->job.size, values, count);
  MPI_Request request;
  MPI_Iallreduce(MPI_IN_PLACE, values, count, MPI_DOUBLE, MPI_SUM, state_->job.control, &request);
  state_->job.complete(request, "sums");
}

void Runtime::barrier() {
  if (detail::simulated)
    return detail::sum_over_simulated_ranks(state_->job.rank, state_->job.size, nullptr, 0);
  MPI_Request request;
  MPI_Ibarrier(state_->job.control, &request);
  state_->job.complete(request, "arrival at a barrier");
}

std::int64_t Runtime::reserve_tags() {
  return std::exchange(state_->next_tag, state_->next_tag + tags_reserved);
}

Runtime::Traffic Runtime::traffic() const {
  const detail::Job& job = state_->job;
  if (job.size == 1) return {0, 0};
  std::vector<std::size_t> sent(job.size), received(job.size);
  starpu_mpi_comm_stats_retrieve(sent.data());
  if (detail::simulated) {  // the counts of all ranks, to read one's own column
    std::vector<double> all(static_cast<std::size_t>(job.size) * job.size, 0);
    std::ranges::copy(sent, all.begin() + std::ptrdiff_t{job.rank} * job.size);
    detail::sum_over_simulated_ranks(job.rank, job.size, all.data(), static_cast<int>(all.size()));
    for (int from = 0; from < job.size; ++from)
      received[from] = static_cast<std::size_t>(all[static_cast<std::size_t>(from) * job.size + job.rank]);
    return {std::reduce(sent.begin(), sent.end()), std::reduce(received.begin(), received.end())};
  }
  static_assert(sizeof(std::size_t) == sizeof(std::uint64_t));
  MPI_Request request;
  MPI_Ialltoall(sent.data(), 1, MPI_UINT64_T, received.data(), 1, MPI_UINT64_T, job.control, &request);
  job.complete(request, "counts of bytes");
  return {std::reduce(sent.begin(), sent.end()), std::reduce(received.begin(), received.end())};
}

std::int64_t Runtime::tile_bytes() const {
  return static_cast<std::int64_t>(starpu_memory_get_used(STARPU_MAIN_RAM));
}

int run(const std::function<int()>& program) {
  try {
    return program();
  } catch (const std::exception& error) {
    return detail::fail(error.what());
  }
}

}  // namespace tegula
