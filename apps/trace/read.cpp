// From the folder of a run to a Trace: has StarPU read what it recorded, and puts on one clock what the ranks wrote.
#include <fmt/format.h>
#include <starpu.h>
#include <starpu_fxt.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <tuple>

#include "apps/trace/starpu_files.hpp"
#include "apps/trace/trace.hpp"
#include "framework/io/file.hpp"
#include "framework/runtime/runtime.hpp"
#include "framework/runtime/trace.hpp"

namespace tegula::trace {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

[[noreturn]] void refuse(const fs::path& where, const std::string& why) {
  throw std::runtime_error(where.string() + ": " + why);
}

// A JSON object of this version of the format.
json read_json(const fs::path& file) {
  json value = json::parse(io::read_text(file), nullptr, /*allow_exceptions=*/false);
  if (!value.is_object() || !value.contains("format") || !value["format"].is_string())
    refuse(file, "is not of a trace, or cut off; record the run again");
  if (const std::string format = value["format"]; format != detail::Trace::format)
    refuse(
        file,
        fmt::format("has the format '{}', this program reads '{}'; take the tegula-trace of the version that "
                    "recorded it",
                    format, detail::Trace::format));
  return value;
}

// Of a member that our own files have, unless somebody has changed them.
template <class T>
T member(const json& object, const char* key, const fs::path& file) {
  try {
    return object.at(key).get<T>();
  } catch (const json::exception&) {
    refuse(file, fmt::format("'{}' is missing or of the wrong type; record the run again", key));
  }
}

// run.json and rank_K.json, once everything is known to be there.
void read_descriptions(const fs::path& folder, Trace& trace) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) refuse(folder, "no such folder; give the one that --trace named");
  if (!fs::exists(folder / "run.json"))
    refuse(folder, "has no run.json: not the folder of a trace, or its run did not come to its end");
  trace.run = read_json(folder / "run.json");
  const int ranks = member<int>(trace.run, "ranks", folder / "run.json");
  for (const char* key : {"command", "date", "starpu", "plan"})
    member<std::string>(trace.run, key, folder / "run.json");
  if (ranks < 1) refuse(folder / "run.json", "has no ranks");
#ifdef STARPU_USE_FXT
  if (ranks > STARPU_FXT_MAX_FILES)
    refuse(folder,
           fmt::format("has {} ranks, this StarPU reads at most {}; build it with --enable-fxt-max-files={}",
                       ranks, STARPU_FXT_MAX_FILES, ranks));
#endif
  for (int rank = 0; rank < ranks; ++rank) {
    const fs::path recorded = folder / fmt::format("rank_{}", rank), file = recorded.string() + ".json";
    for (const fs::path& needed : {recorded, file})
      if (!fs::exists(needed))
        refuse(needed,
               fmt::format("is missing: the run had {} ranks; bring the files of all nodes into one folder",
                           ranks));
    trace.ranks.push_back(read_json(file));
    const auto bytes = member<std::uintmax_t>(trace.ranks.back(), "bytes", file);
    member<std::string>(trace.ranks.back(), "host", file);
    if (const auto found = fs::file_size(recorded); found != bytes)
      refuse(recorded, fmt::format("has {} bytes, {} were written: cut off, or of another run; copy it again",
                                   found, bytes));
  }
}

// A folder that goes with the object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = fs::temp_directory_path() / "tegula-trace-XXXXXX";
    if (!::mkdtemp(name.data())) io::throw_file_error(name, "make a temporary folder", errno);
    path_ = name;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code error;
    fs::remove_all(path_, error);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

#ifdef STARPU_USE_FXT
// In a process of its own, since StarPU's reader ends it where it cannot read a file.
[[noreturn]] void run_reader(const fs::path& folder, int ranks, const fs::path& to) {
  if (::chdir(to.c_str()) != 0 || !std::freopen("log", "w", stderr) || ::dup2(::fileno(stderr), 1) < 0)
    ::_exit(1);
  starpu_fxt_options options;
  starpu_fxt_options_init(&options);
  for (char** unread :
       {&options.dag_path, &options.states_path, &options.distrib_time_path, &options.activity_path,
        &options.sched_tasks_path, &options.anim_path, &options.papi_path, &options.data_path})
    *unread = ::strdup("/dev/null");
  options.no_events = 1;
  options.ninputfiles = static_cast<unsigned>(ranks);
  for (int rank = 0; rank < ranks; ++rank)
    options.filenames[rank] = ::strdup((folder / fmt::format("rank_{}", rank)).c_str());
  starpu_fxt_generate_trace(&options);
  std::fflush(nullptr);
  ::_exit(0);
}

void have_starpu_read(const fs::path& folder, int ranks, const std::string& recorded_by, const fs::path& to) {
  const pid_t child = ::fork();
  if (child < 0) io::throw_file_error(folder, "start StarPU's reader for it", errno);
  if (child == 0) run_reader(fs::absolute(folder), ranks, to);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
  std::string last = "no message";
  std::istringstream log(io::read_text(to / "log"));
  for (std::string line; std::getline(log, line);)
    if (line.find("[abort]") != std::string::npos || last == "no message") last = line;
  refuse(folder,
         fmt::format("StarPU {}.{}.{} cannot read what StarPU {} recorded: {}; the files are damaged, or the "
                     "versions do not fit",
                     STARPU_MAJOR_VERSION, STARPU_MINOR_VERSION, STARPU_RELEASE_VERSION, recorded_by, last));
}
#else
void have_starpu_read(const fs::path& folder, int, const std::string&, const fs::path&) {
  refuse(folder,
         "this program was built with a StarPU that has no FxT and cannot read traces; build StarPU with "
         "--with-fxt");
}
#endif

int intern(std::vector<std::string>& names, std::map<std::string, int>& known, const std::string& name) {
  const auto [at, added] = known.try_emplace(name, static_cast<int>(names.size()));
  if (added) names.push_back(name);
  return at->second;
}

State state_of(const std::string& name, bool message_thread) {
  if (message_thread)
    return name == "Sl" || name == "I" ? State::idle : name == "Pl" ? State::polling : State::mpi;
  if (name == "Sl" || name == "I") return State::idle;
  if (name == "Sc") return State::scheduling;
  if (name == "Fi" || name == "Po" || name == "P" || name == "U") return State::transfer;
  return State::overhead;
}

// Part of [begin, end] that lies in [0, duration].
bool clip(double& start, double& end, double begin, double duration) {
  start = std::max(start - begin, 0.0);
  end = std::min(end - begin, duration);
  return end > start;
}

struct Raw {
  std::vector<RawTask> tasks;
  std::vector<RawMessage> messages;
  RawActivity activity;
};

Raw parse(const fs::path& folder) {
  const auto text = [&](const char* name) { return io::read_text(folder / name); };
  return {parse_tasks(text("tasks.rec"), "tasks.rec"), parse_messages(text("comms.rec"), "comms.rec"),
          parse_activity(text("paje.trace"), "paje.trace")};
}

// What the programs know of their messages: which tile each brings, and whether in a training step, which is where it is
// among those of its kind and where its program is run as often.
class KnownMessages {
 public:
  struct Known {
    std::string what = "state";  // between steps
    bool evaluation = false, training = false;
  };

  explicit KnownMessages(const Trace& trace) {
    for (std::size_t rank = 0; rank < trace.ranks.size(); ++rank) {
      const std::string file = fmt::format("rank_{}.json", rank);
      const json programs = member<json>(trace.ranks[rank], "programs", file);
      for (const json& message : member<json>(trace.ranks[rank], "messages", file)) {
        const auto number = member<std::size_t>(message, "program", file);
        if (!programs.is_array() || number >= programs.size()) refuse(file, "has messages of no program");
        kinds_[{static_cast<int>(rank), member<std::string>(message, "handle", file),
                member<std::int32_t>(message, "tag", file)}] = {
            member<std::string>(message, "what", file), member<bool>(programs[number], "updates", file),
            member<std::int64_t>(programs[number], "runs", file)};
      }
    }
  }

  // To be asked once for each message, in their order.
  Known operator()(const RawMessage& message) {
    const auto kind = kinds_.find({message.to, message.handle, message.tag});
    if (kind == kinds_.end()) return {};
    return {kind->second.what, !kind->second.updates,
            kind->second.updates && kind->second.seen++ < kind->second.runs};
  }

 private:
  struct Kind {
    std::string what;
    bool updates;
    std::int64_t runs, seen = 0;
  };
  std::map<std::tuple<int, std::string, std::int32_t>, Kind> kinds_;  // by receiver, its handle, and the tag
};

struct Window {
  double begin = std::numeric_limits<double>::infinity(), end = -begin;
  void include(double start, double stop) {
    begin = std::min(begin, start);
    end = std::max(end, stop);
  }
};

// From the first training step to the last that all ranks recorded; all kernels where there is no step.
Window find_window(const Raw& raw, const std::vector<KnownMessages::Known>& known, Trace& trace) {
  std::int64_t last_step = std::numeric_limits<std::int64_t>::max();
  for (const json& rank : trace.ranks)
    if (rank.contains("stopped_behind_step") && rank["stopped_behind_step"].is_number_integer())
      last_step = std::min(last_step, rank["stopped_behind_step"].get<std::int64_t>());
  if (last_step != std::numeric_limits<std::int64_t>::max())
    trace.remarks.push_back(
        fmt::format("the buffer was full before the run ended: this is the run up to step {}", last_step));
  Window steps, all;
  for (const RawTask& task : raw.tasks) {
    if (task.worker < 0 || task.start < 0 || task.end < task.start) continue;
    all.include(task.start, task.end);
    if (task.step > 0 && task.step <= last_step) steps.include(task.start, task.end);
  }
  if (steps.end <= steps.begin) return all;
  for (std::size_t i = 0; i < raw.messages.size(); ++i)
    if (known[i].training)
      steps.include(raw.messages[i].start, std::max(raw.messages[i].start, raw.messages[i].end));
  return steps;
}

void take_workers(const Raw& raw, const Window& window, Trace& trace,
                  std::map<std::pair<int, int>, int>& numbers) {
  for (const auto& [key, thread] : raw.activity.threads) {
    if (key.second < 0) continue;  // messages: last
    numbers[key] = static_cast<int>(trace.workers.size());
    const bool cuda = thread.name.starts_with("CUDA");
    trace.workers.push_back({key.first, thread.name, cuda ? "cuda" : "cpu"});
  }
  for (const auto& [key, thread] : raw.activity.threads)
    if (key.second < 0 && !thread.changes.empty()) {
      numbers[key] = static_cast<int>(trace.workers.size());
      trace.workers.push_back({key.first, "MPI", "mpi"});
    }
  for (const auto& [key, thread] : raw.activity.threads) {
    const auto number = numbers.find(key);
    if (number == numbers.end()) continue;
    const auto& changes = thread.changes;
    for (std::size_t i = 0; i < changes.size(); ++i) {
      if (changes[i].state.empty()) continue;  // a kernel: among the tasks
      double start = changes[i].time, end = i + 1 < changes.size() ? changes[i + 1].time : window.end;
      if (!clip(start, end, window.begin, window.end - window.begin)) continue;
      const State state = state_of(changes[i].state, key.second < 0);
      if (!trace.states.empty() && trace.states.back().worker == number->second &&
          trace.states.back().state == state && trace.states.back().end == start)
        trace.states.back().end = end;
      else
        trace.states.push_back({number->second, start, end, state});
    }
  }
}

void take_tasks(const Raw& raw, const Window& window, Trace& trace,
                const std::map<std::pair<int, int>, int>& numbers) {
  std::map<std::string, int> layers, ops;
  for (const RawTask& raw_task : raw.tasks) {
    Job& job = trace.jobs[raw_task.job];
    job.needs = raw_task.needs;
    if (raw_task.worker < 0 || raw_task.start < 0) continue;
    const auto worker = numbers.find({raw_task.rank, raw_task.worker});
    if (worker == numbers.end())
      throw std::runtime_error(
          fmt::format("tasks.rec: '{}' ran on worker {} of rank {}, which paje.trace does not have",
                      raw_task.name, raw_task.worker, raw_task.rank));
    double start = raw_task.start, end = raw_task.end;
    if (!clip(start, end, window.begin, window.end - window.begin)) continue;
    job.duration = end - start;
    Label label = parse_label(raw_task.name);
    trace.tasks.push_back({worker->second, start, end, intern(trace.layers, layers, label.layer),
                           intern(trace.ops, ops, label.op), label.pass, std::move(label.tile),
                           label.micro_batch, std::max<std::int64_t>(raw_task.step, 0), raw_task.flops,
                           raw_task.job});
  }
  std::ranges::sort(trace.tasks, {}, &Task::start);
}

void take_messages(const Raw& raw, const std::vector<KnownMessages::Known>& known, const Window& window,
                   Trace& trace) {
  for (std::size_t i = 0; i < raw.messages.size(); ++i) {
    const RawMessage& message = raw.messages[i];
    const auto ranks = static_cast<int>(trace.ranks.size());
    if (message.from >= ranks || message.to >= ranks)
      throw std::runtime_error(
          fmt::format("comms.rec: a message from rank {} to {} of {}", message.from, message.to, ranks));
    if (message.sender != 0 && message.receiver != 0)
      trace.jobs[message.receiver].needs.push_back(message.sender);
    if (!known[i].training && (message.start < window.begin || message.end > window.end)) continue;
    // Clocks of two ranks are the same to some microseconds: no message arrives before it was sent.
    trace.messages.push_back({message.from, message.to, message.start - window.begin,
                              std::max(message.end, message.start) - window.begin, message.bytes,
                              known[i].what + (known[i].evaluation ? ", evaluation" : "")});
  }
  std::ranges::sort(trace.messages, {}, &Message::start);
}

void take_memory(const Raw& raw, const Window& window, Trace& trace) {
  for (const auto& [key, memory] : raw.activity.memory) {
    MemoryUse use{memory.rank, memory.node, {0}, {0}};
    for (std::size_t i = 0; i < memory.time.size(); ++i) {
      const double time = memory.time[i] - window.begin;
      if (time > window.end - window.begin) break;
      if (time <= use.time.back()) {  // before the beginning, or at once
        use.bytes.back() = memory.bytes[i];
      } else {
        use.time.push_back(time);
        use.bytes.push_back(memory.bytes[i]);
      }
    }
    trace.memory.push_back(std::move(use));
  }
}

// Of the run's metrics.jsonl, where it still is.
void take_losses(Trace& trace) {
  const auto results = trace.run.value("results", json());
  if (!results.is_string()) return;
  const fs::path file = fs::path(results.get<std::string>()) / "metrics.jsonl";
  if (!fs::exists(file)) {
    trace.remarks.push_back("no losses: " + file.string() + " is gone");
    return;
  }
  std::map<std::int64_t, double> losses;
  std::istringstream lines(io::read_text(file));
  for (std::string line; std::getline(lines, line);) {
    const json entry = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!entry.is_object()) continue;
    const auto step = entry.find("step"), loss = entry.find("loss");
    if (step == entry.end() || loss == entry.end() || !step->is_number_integer() || !loss->is_number())
      continue;
    losses.try_emplace(step->get<std::int64_t>(), loss->get<double>());
  }
  trace.losses.assign(losses.begin(), losses.end());
}

}  // namespace

Label parse_label(std::string_view name) {
  Label label;
  const std::size_t open = name.rfind('['), close = name.rfind(']');
  if (open == std::string_view::npos || close == std::string_view::npos || close < open) {
    label.op = name.empty() ? "unnamed" : name;
    label.layer = "other";
    return label;
  }
  label.tile = name.substr(open + 1, close - open - 1);
  const std::string_view behind = name.substr(close + 1);
  if (behind.starts_with('#') && behind.size() > 1 && behind.size() < 9 &&
      behind.find_first_not_of("0123456789", 1) == std::string_view::npos)
    label.micro_batch = std::atoi(std::string(behind.substr(1)).c_str());
  std::string_view scope = name.substr(0, open);
  const std::size_t dot = scope.rfind('.');
  label.op = scope.substr(dot == std::string_view::npos ? 0 : dot + 1);
  scope = dot == std::string_view::npos ? std::string_view() : scope.substr(0, dot + 1);
  for (const auto& [prefix, pass] :
       {std::pair<std::string_view, Pass>{"gradient.", Pass::backward}, {"update.", Pass::update}})
    while (scope.starts_with(prefix)) {
      scope.remove_prefix(prefix.size());
      label.pass = pass;
    }
  if (scope.ends_with('.')) scope.remove_suffix(1);
  label.layer = !scope.empty() ? std::string(scope) : label.pass == Pass::update ? "optimizer" : "other";
  return label;
}

Trace read(const fs::path& folder) {
  Trace trace;
  read_descriptions(folder, trace);
  const TemporaryFolder temporary;
  have_starpu_read(folder, static_cast<int>(trace.ranks.size()), trace.run["starpu"], temporary.path());
  const Raw raw = parse(temporary.path());
  KnownMessages know(trace);
  std::vector<KnownMessages::Known> known;
  for (const RawMessage& message : raw.messages) known.push_back(know(message));
  const Window window = find_window(raw, known, trace);
  if (!(window.end > window.begin)) refuse(folder, "no task of the run was recorded");
  trace.duration = window.end - window.begin;
  std::map<std::pair<int, int>, int> numbers;
  take_workers(raw, window, trace, numbers);
  take_tasks(raw, window, trace, numbers);
  take_messages(raw, known, window, trace);
  take_memory(raw, window, trace);
  take_losses(trace);
  return trace;
}

}  // namespace tegula::trace
