#include "framework/runtime/job.hpp"

#include <dlfcn.h>
#include <signal.h>
#include <starpu_mpi.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <initializer_list>
#include <stdexcept>
#include <string_view>
#include <thread>

#include "framework/runtime/heartbeat.hpp"
#include "framework/runtime/runtime.hpp"
#include "framework/runtime/simulated.hpp"

namespace tegula {
namespace detail {
namespace {

// The first number among these variables.
int launcher_number(std::initializer_list<const char*> names, int otherwise) {
  for (const char* name : names)
    if (const char* value = std::getenv(name); value && *value) return std::atoi(value);
  return otherwise;
}

// This process among the ranks of the job, before, while and after MPI runs.
struct Place {
  bool in_mpi = false;
  int rank = launched_rank();
  int size = launcher_number({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}, 1);
};
Place place_in_job() {
  int initialized = 0, finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  Place place;
  if (simulated) return {true, starpu_mpi_world_rank(), starpu_mpi_world_size()};
  place.in_mpi = initialized && !finalized;
  if (place.in_mpi) {
    MPI_Comm_rank(MPI_COMM_WORLD, &place.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &place.size);
  }
  return place;
}

void write_line(std::string_view line) {
  // One write, so that the lines of several ranks do not mix.
  [[maybe_unused]] auto written = write(STDERR_FILENO, line.data(), line.size());
}

// Open MPI's explanations go through a pointer of this type. Its own function asks the launcher to print them and waits until
// it has, in the midst of the progress of messages: a launcher that is busy ending the job would keep this rank from hearing
// and saying anything. So they are printed here, but for those that would bury our message: on MPI_Abort, and on every
// connection to a rank that is gone.
using ShowHelp = int (*)(const char*, const char*, bool, ...);
std::atomic<bool> banners = true;

int show_help(const char* file, const char* topic, bool header, ...) {
  if (!banners || std::string_view(file) == "help-mpi-btl-tcp.txt") return 0;
  using Render = char* (*)(const char*, const char*, bool, va_list);
  static const auto render = reinterpret_cast<Render>(dlsym(RTLD_DEFAULT, "opal_show_help_vstring"));
  va_list arguments;
  va_start(arguments, header);
  char* text = render ? render(file, topic, header, arguments) : nullptr;
  va_end(arguments);
  if (text) write_line(text);
  std::free(text);
  return 0;
}

void take_over_banners() {
  if (auto* show = static_cast<ShowHelp*>(dlsym(RTLD_DEFAULT, "opal_show_help"))) *show = show_help;
}

std::string what_failed(const std::exception_ptr& error) {
  try {
    if (error) std::rethrow_exception(error);
    return "std::terminate was called";
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

[[noreturn]] void on_terminate() {
  fail(what_failed(std::current_exception()));
  std::_Exit(1);
}

std::atomic<int> signal_caught = 0;

extern "C" void on_signal(int signal) {
  // The launcher ends the other ranks when one leaves without MPI_Finalize.
  if (signal_caught.exchange(signal) != 0) _exit(128 + signal);
}

void handle(int signal, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigaction(signal, &action, nullptr);
}

}  // namespace

void say(const std::string& message) {
  char host[256] = "unknown host";
  gethostname(host, sizeof host - 1);
  write_line("tegula: rank " + std::to_string(place_in_job().rank) + " on " + host + ": " + message + "\n");
}

int fail(const std::string& message) {
  static std::atomic<bool> failing = false;
  if (failing.exchange(true))
    for (;;) pause();  // another thread is ending the process
  Heartbeat::fall_silent();
  const Place place = place_in_job();
  // Rank 0 goes first: if it failed as well, the launcher soon ends this one, with SIGTERM.
  const int earlier = signal_caught;
  if (place.rank != 0 && !simulated)
    for (int i = 0; i < 30 && signal_caught == earlier; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
  if (place.size > 1 && signal_caught != earlier) std::_Exit(1);
  std::fflush(nullptr);  // what the program has printed so far: MPI_Abort and _Exit do not
  if (!message.empty()) say(message);
  if (place.size == 1) return 1;
  if (place.in_mpi) {
    Heartbeat::announce_failure();
    banners = false;
    if (simulated) std::_Exit(1);  // the process of all ranks
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  std::_Exit(1);
}

int launched_ranks_on_node() {
  return launcher_number({"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE"}, 1);
}

Job& Job::start(int argc, char** argv) {
  static Job job(argc, argv);
  return job;
}

const Job& Job::current() { return start(0, nullptr); }

Job::Job(int argc, char** argv) {
  if (simulated) {  // StarPU has started MPI; and a signal ends the process of all ranks
    std::set_terminate(on_terminate);
    tasks = MPI_COMM_WORLD;
    rank = starpu_mpi_world_rank();
    size = starpu_mpi_world_size();
    return;
  }
  int initialized = 0, threads = 0;
  MPI_Initialized(&initialized);
  if (!initialized) {
    // Where ranks have few cores each, Open MPI gives the core away when it waits. Read by MPI_Init.
    if (sysconf(_SC_NPROCESSORS_ONLN) / launched_ranks_on_node() < 4)
      setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &threads);
    owns_mpi_ = true;
    take_over_banners();
  }
  MPI_Query_thread(&threads);
  if (threads < MPI_THREAD_MULTIPLE)
    throw std::runtime_error(
        "this MPI gives no MPI_THREAD_MULTIPLE, which StarPU needs: use one built with it");
  MPI_Comm_dup(MPI_COMM_WORLD, &tasks);
  MPI_Comm_dup(MPI_COMM_WORLD, &control);
  MPI_Comm_rank(control, &rank);
  MPI_Comm_size(control, &size);
  std::set_terminate(on_terminate);
  handle(SIGINT, on_signal);
  handle(SIGTERM, on_signal);
  handle(SIGUSR1, on_signal);  // what batch systems send ahead of the time limit
  handle(SIGPIPE, SIG_IGN);
}

Job::~Job() {
  if (simulated) return;  // StarPU has started MPI and ends it
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized) return;
  if (busy_)
    fail("");  // somebody called exit(), or caught what had left the life of the Runtime: peers wait for us
  MPI_Comm_free(&control);
  MPI_Comm_free(&tasks);
  if (owns_mpi_) MPI_Finalize();
}

bool Job::messages() const { return size > 1 || simulated; }

int Job::signal_received() const { return signal_caught.load(); }

void Job::complete(MPI_Request& request, const char* what) const {
  const std::uint64_t waiting = begin_waiting(-1, what);
  int done = 0;
  while (MPI_Test(&request, &done, MPI_STATUS_IGNORE), !done) std::this_thread::yield();
  end_waiting(waiting);
}

}  // namespace detail

int launched_rank() {
  return detail::launcher_number({"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}, 0);
}

}  // namespace tegula
