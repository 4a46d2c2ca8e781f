#include "framework/runtime/trace.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <starpu.h>
#include <starpu_fxt.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <stdexcept>
#include <utility>

#include "framework/io/file.hpp"
#include "framework/runtime/simulated.hpp"

#ifndef STARPU_SIMGRID
// StarPU asks for it at every event it records, and its own asks the kernel: that was a third of what a trace costs. Takes the place
// of StarPU's where that is a shared library.
extern "C" __attribute__((weak)) long _starpu_gettid() {
  thread_local const long id = ::syscall(SYS_gettid);
  return id;
}
#endif

namespace tegula::detail {
namespace {

Trace* living = nullptr;
constexpr int buffer_mb = 64;

// As a shell would take it. Where the first word is a command of the program (`gpt train`), the program comes before it.
std::string command_line(int argc, const char* const* argv) {
  std::string line;
  if (argc == 0 || std::filesystem::path(argv[0]).filename() != program_invocation_short_name)
    line = std::string(program_invocation_name) + " ";
  for (int i = 0; i < argc; ++i) {
    const std::string word = argv[i];
    const bool plain =
        !word.empty() && word.find_first_of(" \t\n\"'\\$`*?[]{}()<>|&;#!~") == std::string::npos;
    line += i > 0 ? " " : "";
    if (plain) {
      line += word;
      continue;
    }
    line += '\'';
    for (char c : word) line += c == '\'' ? std::string("'\\''") : std::string(1, c);
    line += '\'';
  }
  return line;
}

std::string date() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  char text[64];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S%z", &local);
  return text;
}

std::string starpu_version() {
  int major = 0, minor = 0, release = 0;
  starpu_get_version(&major, &minor, &release);
  return fmt::format("{}.{}.{}", major, minor, release);
}

// What FxT, which only StarPU is linked with, has under this name; null where there is none.
template <class T>
T* find_in_fxt(const char* name) {
  return reinterpret_cast<T*>(::dlsym(RTLD_DEFAULT, name));
}

}  // namespace

Trace::Trace(const std::filesystem::path& folder, const Job& job, int argc, const char* const* argv,
             EnvironmentDefaults& environment)
    : folder_(folder), job_(job) {
#ifndef STARPU_USE_FXT
  throw std::runtime_error(
      "[trace] this StarPU was built without FxT and cannot record: install Debian's libfxt-dev and build "
      "StarPU with "
      "--with-fxt, as scripts/starpu does");
#endif
  io::make_writable_folder(folder_);
  // Before StarPU starts no rank has written anything, so all of them see the same.
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    const std::string name = entry.path().filename();
    if (name == "run.json" || name.starts_with("rank_"))
      throw std::runtime_error(folder_.string() + ": holds a trace already (" + name +
                               "); remove it, or give another folder with --trace");
  }
  environment.set("STARPU_FXT_TRACE", "1");
  environment.override("STARPU_FXT_PREFIX", folder_);
  environment.override("STARPU_FXT_SUFFIX", "rank");
  environment.set("STARPU_TRACE_BUFFER_SIZE", std::to_string(buffer_mb));
  // Not what queues and locks do, nor the shape of every operand, which costs as much as all the rest.
  constexpr const char* events = "TASK|TASK_VERBOSE|WORKER|WORKER_VERBOSE|DSM|DSM_VERBOSE|MPI";
  if (simulated)
    environment.override("STARPU_FXT_EVENTS", events);  // of which the rank before has left the first word
  else
    environment.set("STARPU_FXT_EVENTS", events);
  starpu_fxt_autostart_profiling(1);  // or StarPU would look at that only when recording is started once more
  run_ = {{"format", format},
          {"command", command_line(argc, argv)},
          {"date", date()},
          {"ranks", job.size},
          {"starpu", starpu_version()},
          {"simulated", simulated},
          {"gemm_peak_gflops", nullptr},
          {"plan", ""},
          {"results", nullptr}};
  char host[256] = "?";
  if (simulated)
    fmt::format_to_n(host, sizeof host - 1, "node {}{}", simulated_place(job.rank, job.size).seat.node, '\0');
  else
    ::gethostname(host, sizeof host - 1);
  rank_ = {{"format", format},
           {"rank", job.rank},
           {"host", host},
           {"programs", nlohmann::ordered_json::array()},
           {"messages", nlohmann::ordered_json::array()}};
  living = this;
}

Trace::~Trace() { living = nullptr; }

Trace* Trace::current() { return living; }

void Trace::started(int cpu_workers, int gpus, const std::string& scheduler) {
  allocated_ = find_in_fxt<const volatile std::size_t>("fut_nallocated");
  filled_ = find_in_fxt<const volatile std::size_t>("fut_filled_slot");
  rank_["cpu_workers"] = cpu_workers;
  rank_["gpus"] = gpus;
  run_["scheduler"] = scheduler;
}

void Trace::note(const std::string& key, nlohmann::ordered_json value) { run_[key] = std::move(value); }

std::size_t Trace::add_program(nlohmann::ordered_json figures) {
  rank_["programs"].push_back(std::move(figures));
  runs_.push_back(0);
  return runs_.size() - 1;
}

// Of a tag StarPU's reader keeps 32 bits, of which one handle is never given the same twice.
void Trace::name_message(std::size_t program, const void* handle, std::int64_t tag, std::string what) {
  rank_["messages"].push_back({{"handle", fmt::format("{:x}", reinterpret_cast<std::uintptr_t>(handle))},
                               {"tag", static_cast<std::int32_t>(tag)},
                               {"program", program},
                               {"what", std::move(what)}});
}

Trace::Run::Run(Trace* trace, std::size_t program, std::int64_t step) : traced_(trace != nullptr) {
  if (!traced_) return;
  trace->stop_if_full();
  if (!trace->stopped_) {
    ++trace->runs_[program];
    trace->last_step_ = std::max(trace->last_step_, step);
  }
  starpu_iteration_push(static_cast<unsigned long>(step));
}

Trace::Run::~Run() {
  if (traced_) starpu_iteration_pop();
}

// A full buffer FxT would write to the disk in the midst of the run, over and over, with all workers waiting. The beginning of
// the run, undisturbed, says more.
void Trace::stop_if_full() {
  if (stopped_ || !allocated_ || !filled_ || *filled_ < *allocated_ / 10 * 9) return;
  stopped_ = true;
  starpu_task_wait_for_all();  // so that the last step is whole
  starpu_fxt_stop_profiling();
  rank_["stopped_behind_step"] = last_step_;
  say(
      fmt::format("the trace's buffer of {} MB is full: the trace in {} ends with step {}, the run goes on; "
                  "to record more, set STARPU_TRACE_BUFFER_SIZE (MB)",
                  std::getenv("STARPU_TRACE_BUFFER_SIZE"), folder_.string(), last_step_));
}

void Trace::write() const {
  nlohmann::ordered_json rank = rank_;
  const std::filesystem::path recorded = folder_ / fmt::format("rank_{}", job_.rank);
  std::error_code error;
  const auto bytes = std::filesystem::file_size(recorded, error);
  if (error) throw std::runtime_error(recorded.string() + ": StarPU has not written it: " + error.message());
  rank["bytes"] = bytes;  // who reads it later can tell whether it is whole
  for (std::size_t i = 0; i < runs_.size(); ++i) rank["programs"][i]["runs"] = runs_[i];
  io::write_file(folder_ / fmt::format("rank_{}.json", job_.rank), rank.dump(1) + "\n");
  if (job_.rank == 0) io::write_file(folder_ / "run.json", run_.dump(1) + "\n");
}

}  // namespace tegula::detail
