// How long a listing takes on one rank: list scheduling of its tasks with a simple cost for each. Good enough to rank
// tilings; messages are taken as already there.
#include <algorithm>
#include <queue>

#include "framework/program/listing.hpp"

namespace tegula {

namespace {

// Orders of magnitude of one core of a current server. Only their ratios matter: rates that are all twice as high give the
// same plan.
constexpr double overhead_us = 8, flops_per_us = 200e3, bytes_per_us = 12e3;

double cost_us(const TaskSpec& spec) {
  const void* attributes = spec.attributes.data();
  return overhead_us + spec.op->flops(attributes) / flops_per_us +
         spec.op->bytes(attributes, spec.dtype) / bytes_per_us;
}

}  // namespace

double estimate_us(const Listing& listing, int workers) {
  // Dependencies through buffers, over two steps: the second overlaps the end of the first, as in a long run.
  struct Task {
    double cost = 0;
    int priority = 0, waits_for = 0;
    double ready = 0;
    std::vector<int> unlocks;
  };
  std::vector<Task> tasks;
  std::vector<int> writer(listing.buffers.size(), -1);
  std::vector<std::vector<int>> readers(listing.buffers.size());
  std::size_t first_of_second = 0;
  for (int step = 0; step < 2; ++step) {
    first_of_second = tasks.size();
    for (const Instruction& instruction : listing.instructions) {
      if (instruction.kind != Instruction::Kind::task) continue;
      const TaskSpec& spec = instruction.spec;
      auto self = static_cast<int>(tasks.size());
      tasks.push_back({cost_us(spec), instruction.priority});
      auto after = [&](int other) {
        if (other < 0 || other == self) return;
        tasks[other].unlocks.push_back(self);
        ++tasks[self].waits_for;
      };
      std::size_t operand = 0;
      for (const OperandInfo& info : spec.op->operands) {
        if (info.access == Access::scratch) continue;
        int buffer = listing.memory(instruction.buffers[operand]);
        Access mode = spec.op->access(spec.attributes.data(), static_cast<int>(operand++));
        if (buffer < 0) continue;
        after(writer[buffer]);
        if (mode == Access::read) {
          readers[buffer].push_back(self);
          continue;
        }
        for (int reader : readers[buffer]) after(reader);
        readers[buffer].clear();
        writer[buffer] = self;
      }
    }
  }

  auto later = [&](int a, int b) { return tasks[a].ready > tasks[b].ready; };
  std::priority_queue<int, std::vector<int>, decltype(later)> coming(later);
  auto lower_priority = [&](int a, int b) {
    return std::pair(tasks[a].priority, -a) < std::pair(tasks[b].priority, -b);
  };
  std::priority_queue<int, std::vector<int>, decltype(lower_priority)> ready(lower_priority);
  std::priority_queue<double, std::vector<double>, std::greater<>> free;
  for (int i = 0; i < workers; ++i) free.push(0);
  for (std::size_t i = 0; i < tasks.size(); ++i)
    if (tasks[i].waits_for == 0) coming.push(static_cast<int>(i));
  double first_end = 0, end = 0;
  while (!coming.empty() || !ready.empty()) {
    double now = free.top();
    if (ready.empty()) now = std::max(now, tasks[coming.top()].ready);
    for (; !coming.empty() && tasks[coming.top()].ready <= now; coming.pop()) ready.push(coming.top());
    int self = ready.top();
    ready.pop();
    free.pop();
    double done = now + tasks[self].cost;
    free.push(done);
    end = std::max(end, done);
    if (self < static_cast<int>(first_of_second)) first_end = std::max(first_end, done);
    for (int next : tasks[self].unlocks) {
      tasks[next].ready = std::max(tasks[next].ready, done);
      if (--tasks[next].waits_for == 0) coming.push(next);
    }
  }
  return end - first_end;
}

}  // namespace tegula
