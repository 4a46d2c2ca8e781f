// What a listing has beside its order: priorities, and for how long each buffer needs its memory.
#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "framework/program/listing.hpp"

namespace tegula {

// A turn for each time at which there is work on micro-batches.
void take_turns(Listing& listing) {
  std::vector<Instruction> all;
  double time = -std::numeric_limits<double>::infinity();
  for (Instruction& instruction : listing.instructions) {
    instruction.in_turn =
        instruction.kind == Instruction::Kind::task && std::ranges::any_of(instruction.buffers, [&](int b) {
          return b >= 0 && listing.buffers[b].micro_batch >= 0;
        });
    if (instruction.in_turn && instruction.time > time) {
      time = instruction.time;
      all.push_back({.kind = Instruction::Kind::turn, .time = time});
    }
    all.push_back(std::move(instruction));
  }
  listing.instructions = std::move(all);
}

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

// Drops each buffer after its last use, hands its memory on, and adds up the predictions. With that the memory of a program is
// what this finds, in whatever order tasks run: who takes memory over waits for those who had it.
void drop_after_last_use(Listing& listing, const Layout& layout) {
  std::vector<std::size_t> last_use(listing.buffers.size(), 0);
  std::vector<char> is_kept(listing.buffers.size(), 0);  // for gradients, from micro-batch to micro-batch
  const auto is_backward = [&](const Instruction& i) {
    return i.node >= 0 && listing.nodes[i.node].scope.starts_with(gradient_scope);
  };
  for (std::size_t i = 0; i < listing.instructions.size(); ++i)
    for (int buffer : listing.instructions[i].buffers)
      if (buffer >= 0) {
        last_use[buffer] = i;
        is_kept[buffer] |= is_backward(listing.instructions[i]);
      }

  std::vector<Instruction> with_drops;
  std::vector<char> live(listing.buffers.size(), 0);
  std::vector<char> made_going_back(listing.buffers.size(), 0);
  // Memory that others may take over, and since which task: the one that is free the longest, and some tasks later, so that
  // workers side by side do not wait for each other, unless the plan is there to save memory. What a forward pass keeps for its
  // gradients has memory of its tensor's own: that bounds how many micro-batches are under way. What came from another rank
  // has its own again: where two pipelines meet, the tiles that one makes are those of the other's next stage.
  const std::int64_t apart = layout.saves_memory() ? 1 : 64;
  struct Free {
    int buffer;
    std::int64_t since;
  };
  std::map<std::tuple<int, bool, std::int64_t>, std::deque<Free>> free;
  auto key = [&](int b) {
    const Buffer& buffer = listing.buffers[b];
    const bool own = is_kept[b] && !made_going_back[b] && layout.has_micro_batches(buffer.tensor);
    const bool came = buffer.kind == Buffer::Kind::replica;
    return std::tuple(own ? buffer.tensor : -1, own && came, buffer.bytes());
  };
  std::set<std::int64_t> scratch;  // sizes
  listing.peak_bytes = listing.state_bytes;
  for (std::size_t i = 0; i < listing.instructions.size(); ++i) {
    Instruction& instruction = listing.instructions[i];
    std::vector<int> used = instruction.buffers;
    for (int b : used) {
      if (b < 0 || live[b] || listing.buffers[b].kind == Buffer::Kind::state) continue;
      live[b] = 1;
      made_going_back[b] = is_backward(instruction);
      const auto pool = key(b);
      std::deque<Free>& candidates = free[pool];
      if (!candidates.empty() &&
          candidates.front().since + (std::get<0>(pool) < 0 ? apart : 0) <= listing.tasks) {
        listing.buffers[b].memory = candidates.front().buffer;
        candidates.pop_front();
      } else {
        listing.peak_bytes += listing.buffers[b].bytes();
      }
    }
    if (instruction.kind == Instruction::Kind::task) {
      ++listing.tasks;
      const TaskSpec& spec = instruction.spec;
      listing.flops += spec.op->flops(spec.attributes.data());
      for (int k = 0; k < static_cast<int>(spec.op->operands.size()); ++k)
        if (spec.op->operands[k].access == Access::scratch)
          scratch.insert(
              static_cast<std::int64_t>(scratch_room(spec.op->extent(spec.attributes.data(), k, spec.dtype) *
                                                     size_of(spec.op->dtype(k, spec.dtype)))));
    } else if (instruction.kind == Instruction::Kind::send) {
      listing.sent_bytes += listing.buffers[used[0]].bytes();
    } else if (instruction.kind == Instruction::Kind::receive) {
      listing.received_bytes += listing.buffers[used[0]].bytes();
    }
    with_drops.push_back(std::move(instruction));
    for (int b : used) {
      if (b < 0 || last_use[b] != i || !live[b]) continue;
      live[b] = 0;
      with_drops.push_back({.kind = Instruction::Kind::drop, .buffers = {b}});
      free[key(b)].push_back({listing.memory(b), listing.tasks});
    }
  }
  listing.instructions = std::move(with_drops);
  listing.scratch_bytes = std::accumulate(scratch.begin(), scratch.end(), std::int64_t{0});
}

}  // namespace tegula
