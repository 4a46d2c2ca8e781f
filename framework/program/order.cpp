// What a listing has beside its order: priorities, and for how long each buffer needs its memory.
#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

#include "framework/program/listing.hpp"

namespace tegula {

// Priority: the work, in units of 100 kflop, on the longest path from the task to the end of the step. What is sent comes
// first, as another rank waits for it.
void prioritize(Listing& listing) {
  constexpr double unit = 1e5, waited_for = 1e6;
  constexpr double ahead = 1 << 22;  // beyond the paths of a step
  int turn = 0;                      // of the times that there are
  for (std::size_t i = 1; i < listing.instructions.size(); ++i)
    turn += listing.instructions[i].time > listing.instructions[i - 1].time;
  // By buffer: from the tasks that read its present contents.
  std::vector<double> path(listing.buffers.size(), 0);
  for (std::size_t i = listing.instructions.size(); i-- > 0;) {
    Instruction& instruction = listing.instructions[i];
    double longest = instruction.kind == Instruction::Kind::send ? waited_for : 0;
    if (instruction.kind == Instruction::Kind::task) {
      const TaskSpec& spec = instruction.spec;
      int operand = 0;
      for (const OperandInfo& info : spec.op->operands) {
        if (info.access == Access::scratch) continue;
        int buffer = instruction.buffers[operand];
        Access mode = spec.op->access(spec.attributes.data(), operand++);
        if (buffer < 0 || mode == Access::read) continue;
        longest = std::max(longest, path[buffer]);
        if (mode == Access::write) path[buffer] = 0;
      }
      longest += std::max(1.0, spec.op->flops(spec.attributes.data()) / unit);
    } else if (instruction.kind == Instruction::Kind::fill) {
      longest = path[instruction.buffers[0]] + 1;
    }
    // What the schedule has earlier comes first: nothing later matters before.
    constexpr double least = std::numeric_limits<int>::min();
    instruction.priority = static_cast<int>(std::max(longest - turn * ahead, least));
    if (i > 0) turn -= instruction.time > listing.instructions[i - 1].time;
    for (int buffer : instruction.buffers)
      if (buffer >= 0) path[buffer] = std::max(path[buffer], longest);
  }
}

// Drops each buffer after its last use, and adds up the predictions.
void drop_after_last_use(Listing& listing, const Layout& layout) {
  std::vector<std::size_t> last_use(listing.buffers.size(), 0);
  for (std::size_t i = 0; i < listing.instructions.size(); ++i)
    for (int buffer : listing.instructions[i].buffers)
      if (buffer >= 0) last_use[buffer] = i;

  std::vector<Instruction> with_drops;
  std::vector<char> live(listing.buffers.size(), 0);
  std::int64_t current = 0;
  // Buffers with memory that others may take over, the one that is free the longest first.
  std::map<std::pair<int, std::vector<std::int64_t>>, std::deque<int>> free;
  auto key = [&](int b) {
    const Buffer& buffer = listing.buffers[b];
    // Whatever is recomputed, of any layer, so that none is before its gradients need it.
    const int pool =
        layout.is_recomputed(buffer.tensor) ? -1 - static_cast<int>(buffer.dtype) : buffer.tensor;
    return std::pair(pool, buffer.region.extent);
  };
  for (std::size_t i = 0; i < listing.instructions.size(); ++i) {
    Instruction& instruction = listing.instructions[i];
    std::vector<int> used = instruction.buffers;
    for (int b : used) {
      if (b < 0 || live[b] || listing.buffers[b].kind == Buffer::Kind::state) continue;
      live[b] = 1;
      current += listing.buffers[b].bytes();
      if (auto place = free.find(key(b)); place != free.end() && !place->second.empty()) {
        listing.buffers[b].memory = place->second.front();
        place->second.pop_front();
      }
    }
    listing.peak_bytes = std::max(listing.peak_bytes, current);
    if (instruction.kind == Instruction::Kind::task) {
      ++listing.tasks;
      listing.flops += instruction.spec.op->flops(instruction.spec.attributes.data());
    } else if (instruction.kind == Instruction::Kind::send) {
      listing.sent_bytes += listing.buffers[used[0]].bytes();
    } else if (instruction.kind == Instruction::Kind::receive) {
      listing.received_bytes += listing.buffers[used[0]].bytes();
    }
    with_drops.push_back(std::move(instruction));
    for (int b : used) {
      if (b < 0 || last_use[b] != i || !live[b]) continue;
      live[b] = 0;
      current -= listing.buffers[b].bytes();
      with_drops.push_back({.kind = Instruction::Kind::drop, .buffers = {b}});
      const Buffer& buffer = listing.buffers[b];
      if (layout.has_micro_batches(buffer.tensor) || layout.is_recomputed(buffer.tensor))
        free[key(b)].push_back(buffer.memory < 0 ? b : buffer.memory);
    }
  }
  listing.instructions = std::move(with_drops);
  listing.peak_bytes += listing.state_bytes;
}

}  // namespace tegula
