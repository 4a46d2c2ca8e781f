#include "tests/graph/execution.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <stdexcept>

namespace tegula::test {

namespace {

Hash mix(Hash a, Hash b) {  // the finalizer of SplitMix64
  Hash z = a * 0x9e3779b97f4a7c15U + b + 0x632be59bd9b4e019U;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9U;
  z = (z ^ z >> 27) * 0x94d049bb133111ebU;
  return z ^ z >> 31;
}

// The operands of the task, scratch left out, as in Instruction::buffers.
std::vector<Access> accesses(const TaskSpec& spec) {
  std::vector<Access> all;
  for (int i = 0; i < static_cast<int>(spec.op->operands.size()); ++i)
    if (Access access = spec.op->access(spec.attributes.data(), i); access != Access::scratch)
      all.push_back(access);
  return all;
}

}  // namespace

class Execution::Rank {
 public:
  Rank(Execution& all, const Listing& listing, int rank)
      : all_(all),
        listing_(listing),
        rank_(rank),
        contents_(listing.buffers.size()),
        dropped_(contents_.size()),
        owner_(contents_.size()) {
    std::iota(owner_.begin(), owner_.end(), 0);
    // Values are known by the node that makes them: lowering makes new tensors each time where it expands an op.
    for (std::size_t i = 0; i < listing.nodes.size(); ++i)
      for (const Tensor& y : listing.nodes[i].outputs) maker_.emplace(y.id(), mix(i, maker_.size()));
    for (std::size_t i = 0; i < contents_.size(); ++i) {
      const Buffer& buffer = listing.buffers[i];
      if (buffer.kind != Buffer::Kind::state) continue;
      require(all.state_.emplace(std::pair(buffer.tensor, buffer.tile), place(buffer)).second,
              "a tile of state has two buffers");
      contents_[i] = place(buffer);
    }
    last_use_.assign(contents_.size(), -1);
    for (std::size_t i = 0; i < listing.instructions.size(); ++i)
      if (listing.instructions[i].kind != Instruction::Kind::drop)
        for (int b : listing.instructions[i].buffers)
          if (b >= 0) last_use_[b] = static_cast<int>(i);
  }

  bool done() const { return next_ == static_cast<int>(listing_.instructions.size()); }

  // Goes on to the next receive whose message has not been sent, or the end. Returns whether it got anywhere.
  bool advance() {
    const int from = next_;
    while (!done() && perform(listing_.instructions[next_])) ++next_;
    return next_ > from;
  }

  void finish() const {
    for (std::size_t i = 0; i < contents_.size(); ++i) {
      const Buffer& buffer = listing_.buffers[i];
      if (buffer.kind == Buffer::Kind::state)
        all_.state_[{buffer.tensor, buffer.tile}] = contents_[i].value();
      else
        require(dropped_[i], "a buffer is never dropped");
    }
  }

 private:
  void require(bool holds, const std::string& what) const {
    if (!holds)
      throw std::logic_error(what + ", on rank " + std::to_string(rank_) + " at instruction " +
                             std::to_string(next_));
  }

  // The tile that a buffer holds, by the same number on all ranks.
  Hash tile(const Buffer& buffer) const {
    auto maker = maker_.find(buffer.tensor);
    return mix(maker == maker_.end() ? static_cast<Hash>(buffer.tensor) : maker->second, buffer.tile);
  }
  // And which part of its tensor.
  Hash place(const Buffer& buffer) const {
    Hash hash = tile(buffer);
    for (std::int64_t begin : buffer.region.begin) hash = mix(hash, begin);
    for (std::int64_t extent : buffer.region.extent) hash = mix(hash, extent);
    return mix(hash, buffer.bytes());
  }

  Hash read(int buffer) const {
    const int memory = listing_.memory(buffer);
    require(contents_[memory].has_value() && owner_[memory] == buffer,
            "a buffer is read that nothing has written");
    return *contents_[memory];
  }
  void write(int buffer, Hash contents) {
    require(!dropped_[buffer], "a dropped buffer is written");
    const int memory = listing_.memory(buffer);
    require(owner_[memory] == buffer || dropped_[owner_[memory]], "memory is taken over before it is free");
    owner_[memory] = buffer;
    contents_[memory] = contents;
  }

  bool perform(const Instruction& instruction) {
    using enum Instruction::Kind;
    const std::vector<int>& buffers = instruction.buffers;
    switch (instruction.kind) {
      case task:
        require(instruction.node >= node_ || instruction.time > time_,
                "tasks are not in the order of the nodes");
        require(!instruction.in_turn || instruction.time == turn_, "a task is not in its turn");
        time_ = instruction.time;
        node_ = instruction.node;
        run(instruction);
        break;
      case fill:
        write(buffers[0], place(listing_.buffers[buffers[0]]));
        break;
      case send: {
        Message message{rank_, instruction.peer, place(listing_.buffers[buffers[0]]), read(buffers[0])};
        require(all_.sent_.emplace(std::tuple(rank_, instruction.peer, instruction.tag), message).second,
                "a tag is used twice");
        break;
      }
      case receive: {
        auto place_of = all_.sent_.find({instruction.peer, rank_, instruction.tag});
        if (place_of == all_.sent_.end()) return false;
        const Message& message = place_of->second;
        require(message.to == rank_ && message.from == instruction.peer, "sender and receiver do not match");
        require(message.tile == place(listing_.buffers[buffers[0]]), "what is sent is not what is received");
        require(received_.emplace(instruction.peer, instruction.tag).second, "a message is received twice");
        write(buffers[0], message.contents);
        ++all_.messages_;
        break;
      }
      case fetch: {
        const Buffer& buffer = listing_.buffers[buffers[0]];
        all_.outputs_[{buffer.tensor, buffer.tile}] = read(buffers[0]);
        break;
      }
      case turn:
        require(instruction.time > turn_, "a turn comes late");
        turn_ = instruction.time;
        break;
      case drop:
        require(listing_.buffers[buffers[0]].kind != Buffer::Kind::state, "state is dropped");
        require(!dropped_[buffers[0]] && last_use_[buffers[0]] < next_, "a buffer is dropped too early");
        dropped_[buffers[0]] = true;
        contents_[listing_.memory(buffers[0])].reset();
        break;
    }
    return true;
  }

  void run(const Instruction& instruction) {
    const std::vector<Access> access = accesses(instruction.spec);
    const std::vector<int>& buffers = instruction.buffers;
    const Semantics& semantics = *listing_.nodes[instruction.node].semantics;
    if (semantics.part && listing_.buffers[buffers[1]].kind == Buffer::Kind::part) {
      // A part cut out of a tile, to be sent, stands for the tile.
      const Buffer &whole = listing_.buffers[buffers[0]], &part = listing_.buffers[buffers[1]];
      require(tile(part) == tile(whole), "a part is not of its tile");
      for (std::size_t i = 0; i < part.region.begin.size(); ++i)
        require(part.region.begin[i] >= whole.region.begin[i] &&
                    part.region.begin[i] + part.region.extent[i] <=
                        whole.region.begin[i] + whole.region.extent[i],
                "a part is not in its tile");
      return write(buffers[1], read(buffers[0]));
    }
    require(access.size() == buffers.size(), "a task has not the operands of its op");
    Hash hash = std::hash<std::string>()(instruction.spec.op->name);
    hash = mix(hash, instruction.node);
    if (adds_partial_sums(instruction, access)) {
      hash += read(buffers[0]) + read(buffers[1]);  // the same in either order, as a sum of two is
    } else {
      for (std::size_t i = 0; i < buffers.size(); ++i) {
        if (buffers[i] < 0) continue;
        hash = mix(hash, i == 0 && semantics.part ? tile(listing_.buffers[buffers[i]])
                                                  : place(listing_.buffers[buffers[i]]));
        if (access[i] != Access::write) hash = mix(hash, read(buffers[i]));
      }
    }
    all_.tasks_.insert(hash);
    for (std::size_t i = 0; i < buffers.size(); ++i)
      if (buffers[i] >= 0 && access[i] != Access::read) write(buffers[i], mix(hash, i));
  }

  bool adds_partial_sums(const Instruction& instruction, const std::vector<Access>& access) const {
    if (access != std::vector{Access::read, Access::read_write}) return false;
    return place(listing_.buffers[instruction.buffers[0]]) == place(listing_.buffers[instruction.buffers[1]]);
  }

  Execution& all_;
  const Listing& listing_;
  int rank_;
  std::map<int, Hash> maker_;                  // by tensor
  std::vector<std::optional<Hash>> contents_;  // by buffer
  std::vector<char> dropped_;
  std::vector<int> owner_;  // buffer, by memory: each its own to begin with
  std::vector<int> last_use_;
  std::set<std::pair<int, std::int64_t>> received_;
  int next_ = 0, node_ = 0;
  double time_ = 0, turn_ = -1;
};

Execution::Execution(const std::vector<Listing>& listings) {
  std::vector<Rank> ranks;
  for (std::size_t i = 0; i < listings.size(); ++i)
    ranks.emplace_back(*this, listings[i], static_cast<int>(i));
  for (bool moved = true; moved;) {
    moved = false;
    for (Rank& rank : ranks) moved |= rank.advance();
  }
  for (const Rank& rank : ranks)
    if (!rank.done()) throw std::logic_error("the ranks wait for each other");
  for (const Rank& rank : ranks) rank.finish();
  if (messages_ != static_cast<std::int64_t>(sent_.size()))
    throw std::logic_error("a message is not received");
}

}  // namespace tegula::test
