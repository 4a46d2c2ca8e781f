// A trace as the tool sees it: what workers, messages and memory did between the start of the first training step and the
// end of the last, on one clock for all ranks. docs/traces.md defines every figure made of it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tegula::trace {

enum class Pass : std::uint8_t { forward, backward, update };
inline constexpr const char* pass_names[] = {"forward", "backward", "update"};

// What a worker does outside of kernels; polling and mpi: the thread that drives messages.
enum class State : std::uint8_t { idle, scheduling, overhead, transfer, polling, mpi };
inline constexpr const char* state_names[] = {"idle", "scheduling", "overhead", "transfer", "polling", "mpi"};

// The parts of a task's name, LAYER.OP[TILE]#MICRO-BATCH. A task that is of no program has its whole name as op.
struct Label {
  std::string layer, op, tile;
  Pass pass = Pass::forward;
  int micro_batch = -1;
};
Label parse_label(std::string_view name);

struct Worker {
  int rank;
  std::string name;
  std::string kind;  // cpu, cuda or mpi
};

// Times in microseconds; in a Trace from its beginning on.
struct Task {
  int worker;
  double start, end;
  int layer, op;
  Pass pass;
  std::string tile;
  int micro_batch;
  std::int64_t step;  // 0: outside of training steps
  double flops;
  std::uint64_t job;
};

struct Stay {  // of a worker in a state
  int worker;
  double start, end;
  State state;
};

struct Message {
  int from, to;
  double start, end;
  std::uint64_t bytes;
  std::string what;
};

struct MemoryUse {
  int rank;
  std::string node;
  std::vector<double> time, bytes;
};

// What ran or waited, and for what: kernels, and the ends of messages.
struct Job {
  std::vector<std::uint64_t> needs;
  double duration = 0;  // of its kernel
};

struct Trace {
  nlohmann::json run;                 // run.json
  std::vector<nlohmann::json> ranks;  // rank_K.json
  std::vector<Worker> workers;
  std::vector<std::string> layers, ops;
  std::vector<Task> tasks;  // in order of their start
  std::vector<Stay> states;
  std::vector<Message> messages;
  std::vector<MemoryUse> memory;
  std::map<std::uint64_t, Job> jobs;
  std::vector<std::pair<std::int64_t, double>> losses;
  double duration = 0;
  std::vector<std::string> remarks;  // for the user
};

// Reads the folder of a run. Throws std::runtime_error, which says what is wrong and what to do, where it is not one,
// or not whole, or of another version.
Trace read(const std::filesystem::path& folder);

// report.json: docs/traces.md lists its keys. Contains the summary.
nlohmann::ordered_json report(const Trace& trace);
// The summary of a report as text.
std::string summary(const nlohmann::ordered_json& report);
// What got slower from one report to another, as text.
std::string difference(const nlohmann::ordered_json& before, const nlohmann::ordered_json& after);

std::string chrome(const Trace& trace);  // Chrome's trace-event format, which Perfetto reads
std::string paje(const Trace& trace);
std::string html(const nlohmann::ordered_json& report);

}  // namespace tegula::trace
