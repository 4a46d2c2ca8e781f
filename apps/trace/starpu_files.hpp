// The files that StarPU's reader of FxT traces makes: tasks.rec and comms.rec (records of "Key: value" lines) and
// paje.trace. Only what the tool needs of them. No function here trusts its input.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tegula::trace {

struct RawTask {
  std::uint64_t job;
  std::string name;
  int rank = -1, worker = -1;
  double start = -1, end = -1;  // us; -1: it is not a kernel
  double flops = 0;
  std::int64_t step = 0;
  std::vector<std::uint64_t> needs;
};

struct RawMessage {
  int from = -1, to = -1;
  std::int32_t tag = -1;  // of which StarPU's reader keeps 32 bits
  std::string handle;     // of the receiver
  double start = -1, end = -1;
  std::uint64_t bytes = 0;
  std::uint64_t sender = 0, receiver = 0;  // jobs; 0: none
};

struct RawChange {  // of what a thread does, by StarPU's short name for it; empty: back to a kernel
  double time;
  std::string state;
};

struct RawThread {
  int rank;
  std::string name;  // CPU0, CUDA0.0; empty: the one that drives messages
  std::vector<RawChange> changes;
};

struct RawMemory {
  int rank;
  std::string node;
  std::vector<double> time, bytes;
};

// Ranks count from 0 and jobs of a rank from 1; this is one number for both.
constexpr std::uint64_t job_number(std::uint64_t rank, std::uint64_t job) { return rank << 40 | job; }

// All throw std::runtime_error, starting with `name` and the line, for what they cannot read.
std::vector<RawTask> parse_tasks(std::string_view text, const std::string& name);
std::vector<RawMessage> parse_messages(std::string_view text, const std::string& name);

struct RawActivity {
  std::map<std::pair<int, int>, RawThread>
      threads;                                      // by rank and worker, -1 for the one that drives messages
  std::map<std::pair<int, int>, RawMemory> memory;  // by rank and memory node
};
RawActivity parse_activity(std::string_view text, const std::string& name);

}  // namespace tegula::trace
