#include "framework/simulation/estimate.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <queue>
#include <stdexcept>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace tegula::simulation {

namespace {

// Several steps run on, as in a job: the last ones tell how long one takes.
constexpr int steps = 4;

struct Work {
  enum class Kind : std::uint8_t { task, delay, message } kind;  // a delay keeps no worker busy
  std::uint8_t step;
  int rank, peer = -1;  // of a message: from and to
  int priority = 0;
  int waits_for = 0;
  int first_unlock = -1;
  double duration = 0;  // of a message: bytes
};

struct Key {
  int from, to, step;
  std::int64_t tag;
  bool operator==(const Key&) const = default;
};
struct Hash {
  std::size_t operator()(const Key& key) const {
    std::uint64_t hash = static_cast<std::uint64_t>(key.tag) * 0x9e3779b97f4a7c15ULL;
    hash ^= (static_cast<std::uint64_t>(key.from) << 40) ^ (static_cast<std::uint64_t>(key.to) << 20) ^
            static_cast<std::uint64_t>(key.step);
    return hash * 0xbf58476d1ce4e5b9ULL >> 7;
  }
};

struct Seated {
  Cluster::Seat seat;
  const NodeType* type;  // null: a rank by itself
  const Device* device;
  // Ready tasks, the best first: of the earliest step, as programs run ahead by two at most; by priority; as listed.
  std::priority_queue<std::pair<std::int64_t, int>> ready = {};
  int free_workers = 0;
};

}  // namespace

struct Estimator::State {
  const Cluster* cluster = nullptr;
  std::vector<Seated> ranks;
  int added = 0;
  std::vector<Work> all;
  struct Unlock {
    int work, next;
  };
  std::vector<Unlock> unlocks;
  std::unordered_map<Key, int, Hash> one_sided;  // messages of which one end is known
  std::map<std::tuple<const OpInfo*, DType, const Device*>, Rates> rates;
  Estimate result;
  // When links are free again, out and in: of ranks to others on their node, of nodes, and of wide-area links.
  std::vector<double> rank_links[2], node_links[2], wide_links[2];

  void after(int work, int other) {
    if (other < 0 || other == work) return;
    unlocks.push_back({work, all[other].first_unlock});
    all[other].first_unlock = static_cast<int>(unlocks.size()) - 1;
    ++all[work].waits_for;
  }
  int add(Work work) {
    all.push_back(work);
    return static_cast<int>(all.size()) - 1;
  }
  double task(const TaskSpec& spec, const Device& device) {
    auto [known, is_new] = rates.try_emplace({spec.op, spec.dtype, &device});
    if (is_new) known->second = rates_of(*spec.op, spec.dtype, device);
    const void* attributes = spec.attributes.data();
    return known->second.seconds(spec.op->flops(attributes), spec.op->operand_bytes(attributes, spec.dtype));
  }
  // Host code on data: work of a core, or a transfer to a GPU.
  static double host(const Seated& rank, double bytes) {
    if (rank.device->gpu) return rank.type->pcie.latency + bytes / rank.type->pcie.bandwidth;
    return rank.device->overhead + bytes / rank.device->bandwidth;
  }
  // The message of an instruction: its other end may have made it.
  int message(const Instruction& instruction, double bytes, std::uint8_t step) {
    const bool sends = instruction.kind == Instruction::Kind::send;
    if (!cluster) return add({.kind = Work::Kind::delay, .step = step, .rank = added});
    const int from = sends ? added : instruction.peer, to = sends ? instruction.peer : added;
    auto [other, is_new] = one_sided.try_emplace({from, to, step, instruction.tag}, -1);
    if (is_new)
      return other->second = add({.kind = Work::Kind::message,
                                  .step = step,
                                  .rank = from,
                                  .peer = to,
                                  .priority = instruction.priority,
                                  .duration = bytes});
    const int work = other->second;
    one_sided.erase(other);
    return work;
  }

  void add(const Listing& listing);
  double arrival(const Work& message, double now);
  Estimate run();
};

// The tasks of some steps, which wait for each other through the memory that they share: for who wrote what they read, and for
// who reads what they overwrite.
void Estimator::State::add(const Listing& listing) {
  const Seated& here = ranks.at(added);
  Estimate::Rank& rank = result.ranks[added];
  rank = {.flops = listing.flops,
          .sent_bytes = static_cast<double>(listing.sent_bytes),
          .peak_bytes = listing.peak_bytes};
  std::vector<int> writer(listing.buffers.size() + 1, -1);
  std::vector<std::vector<int>> readers(listing.buffers.size() + 1);
  auto shares = [&](int work, int memory, bool writes) {
    if (memory < 0) return;
    after(work, writer[memory]);
    if (!writes) return readers[memory].push_back(work);
    for (const int reader : readers[memory]) after(work, reader);
    readers[memory].clear();
    writer[memory] = work;
  };
  auto uses = [&](int work, int buffer, bool writes) { shares(work, listing.memory(buffer), writes); };
  const auto turn = static_cast<int>(listing.buffers.size());  // as if it were memory
  std::vector<double> durations;                               // of the step's instructions
  for (const Instruction& instruction : listing.instructions) {
    double seconds = 0;
    if (instruction.kind == Instruction::Kind::task)
      seconds = task(instruction.spec, *here.device);
    else if (!instruction.buffers.empty())
      seconds = host(here, static_cast<double>(listing.buffers[instruction.buffers[0]].bytes()));
    durations.push_back(seconds);
  }
  for (std::uint8_t step = 0; step < steps; ++step)
    for (std::size_t i = 0; i < durations.size(); ++i) {
      const Instruction& instruction = listing.instructions[i];
      const bool is_task = instruction.kind == Instruction::Kind::task;
      switch (instruction.kind) {
        case Instruction::Kind::task:
        case Instruction::Kind::fill:
        case Instruction::Kind::fetch: {
          const bool works = is_task || !here.device->gpu;
          const int work = add({.kind = works ? Work::Kind::task : Work::Kind::delay,
                                .step = step,
                                .rank = added,
                                .priority = instruction.priority,
                                .duration = durations[i]});
          if (step == 0 && works) rank.busy += durations[i];
          if (!is_task) {
            uses(work, instruction.buffers[0], instruction.kind == Instruction::Kind::fill);
            break;
          }
          if (instruction.in_turn) shares(work, turn, false);
          const TaskSpec& spec = instruction.spec;
          int operand = 0;
          for (const OperandInfo& info : spec.op->operands) {
            if (info.access == Access::scratch) continue;
            const Access mode = spec.op->access(spec.attributes.data(), operand);
            uses(work, instruction.buffers[operand++], mode != Access::read);
          }
          break;
        }
        case Instruction::Kind::send:
        case Instruction::Kind::receive: {
          const bool receives = instruction.kind == Instruction::Kind::receive;
          const auto bytes = static_cast<double>(listing.buffers[instruction.buffers[0]].bytes());
          uses(message(instruction, bytes, step), instruction.buffers[0], receives);
          if (step == 0 && receives) ++result.messages;
          break;
        }
        case Instruction::Kind::turn:
          shares(add({.kind = Work::Kind::delay, .step = step, .rank = added}), turn, true);
          break;
        case Instruction::Kind::drop:
          break;
      }
    }
  result.tasks += listing.tasks;
  ++added;
}

// When a message that can start now is there: what it goes through carries one at a time.
double Estimator::State::arrival(const Work& message, double now) {
  const Seated &from = ranks[message.rank], &to = ranks[message.peer];
  double latency = 0, slowest = 0, start = now;
  std::array<std::pair<double*, double>, 4> busy;  // links, and for how long
  std::size_t links = 0;
  auto through = [&](const Link& link, double* out, double* in) {
    latency = std::max(latency, link.latency);
    const double seconds = message.duration / link.bandwidth;
    slowest = std::max(slowest, seconds);
    for (double* end : {out, in})
      if (end) {
        start = std::max(start, *end);
        busy[links++] = {end, seconds};
      }
  };
  double wires = 0;  // latencies one after the other
  if (from.seat.node == to.seat.node) {
    const NodeType& type = *from.type;
    const bool direct = from.device->gpu && type.peer;
    through(direct ? *type.peer : type.shared, &rank_links[0][message.rank], &rank_links[1][message.peer]);
    if (from.device->gpu && !direct) through(type.pcie, nullptr, nullptr), wires += 2 * type.pcie.latency;
  } else {
    through(from.type->network, &node_links[0][from.seat.node], nullptr);
    through(to.type->network, nullptr, &node_links[1][to.seat.node]);
    const std::string &a = cluster->nodes[from.seat.site].site, &b = cluster->nodes[to.seat.site].site;
    for (std::size_t i = 0; a != b && i < cluster->wide.size(); ++i) {
      const Cluster::WideLink& wide = cluster->wide[i];
      if (wide.a == a && wide.b == b) through(wide.link, &wide_links[0][i], nullptr);
      if (wide.a == b && wide.b == a) through(wide.link, &wide_links[1][i], nullptr);
    }
    for (const Seated* end : {&from, &to})
      if (end->device->gpu) through(end->type->pcie, nullptr, nullptr), wires += end->type->pcie.latency;
  }
  for (std::size_t i = 0; i < links; ++i) *busy[i].first = start + busy[i].second;
  return start + latency + wires + slowest;
}

Estimate Estimator::State::run() {
  if (added < static_cast<int>(ranks.size()))
    throw std::logic_error("[estimate] the listings of some ranks are missing");
  if (!one_sided.empty()) throw std::logic_error("[estimate] a message has only one end");
  std::priority_queue<std::pair<double, int>, std::vector<std::pair<double, int>>, std::greater<>> ends;
  double now = 0;
  auto ready = [&](int index) {
    const Work& work = all[index];
    if (work.kind == Work::Kind::task)
      ranks[work.rank].ready.emplace(work.priority - (std::int64_t{work.step} << 33), -index);
    else
      ends.emplace(work.kind == Work::Kind::delay ? now + work.duration : arrival(work, now), index);
  };
  auto dispatch = [&](Seated& rank) {
    for (; rank.free_workers > 0 && !rank.ready.empty(); --rank.free_workers) {
      const int index = -rank.ready.top().second;
      rank.ready.pop();
      ends.emplace(now + all[index].duration, index);
    }
  };
  std::vector<int> touched;  // ranks whose work or workers have changed
  std::size_t done = 0;
  std::array<double, steps> end{};
  for (std::size_t i = 0; i < all.size(); ++i)
    if (all[i].waits_for == 0) ready(static_cast<int>(i));
  for (Seated& rank : ranks) dispatch(rank);
  while (!ends.empty()) {
    const auto [time, index] = ends.top();
    ends.pop();
    now = time;
    ++done;
    const Work& work = all[index];
    end[work.step] = std::max(end[work.step], now);
    for (int u = work.first_unlock; u >= 0; u = unlocks[u].next)
      if (--all[unlocks[u].work].waits_for == 0) {
        ready(unlocks[u].work);
        touched.push_back(all[unlocks[u].work].rank);
      }
    if (work.kind == Work::Kind::task) {
      ++ranks[work.rank].free_workers;
      touched.push_back(work.rank);
    }
    // When all that ends now has ended: a worker takes the best of what is ready then.
    if (!ends.empty() && ends.top().first <= now) continue;
    for (const int rank : touched) dispatch(ranks[rank]);
    touched.clear();
  }
  if (done < all.size()) throw std::logic_error("[estimate] work waits for itself");

  result.seconds = (end[steps - 1] - end[steps - 3]) / 2;
  std::map<int, const NodeType*> nodes;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const Seated& seated = ranks[i];
    Estimate::Rank& rank = result.ranks[i];
    const double most = seated.seat.workers * result.seconds;
    rank.bubble = most > 0 ? std::max(1 - rank.busy / most, 0.0) : 0;
    if (seated.type) nodes[seated.seat.node] = seated.type;
    result.joules +=
        rank.busy * seated.device->power + std::max(most - rank.busy, 0.0) * seated.device->idle_power;
  }
  for (const auto& node : nodes) result.joules += node.second->power * result.seconds;
  return std::move(result);
}

Estimator::Estimator(const Cluster& cluster, std::vector<Cluster::Seat> seats)
    : state_(std::make_unique<State>()) {
  state_->cluster = &cluster;
  state_->result.ranks.resize(seats.size());
  int nodes = 0;
  for (const Cluster::Seat& seat : seats) {
    state_->ranks.push_back({.seat = seat,
                             .type = &cluster.types[seat.type],
                             .device = &cluster.device(seat),
                             .free_workers = seat.workers});
    nodes = std::max(nodes, seat.node + 1);
  }
  for (const int way : {0, 1}) {
    state_->rank_links[way].resize(seats.size());
    state_->node_links[way].resize(nodes);
    state_->wide_links[way].resize(cluster.wide.size());
  }
}

Estimator::Estimator(const Device& device, int workers) : state_(std::make_unique<State>()) {
  state_->ranks.push_back(
      {.seat = {.workers = workers}, .type = nullptr, .device = &device, .free_workers = workers});
  state_->result.ranks.resize(1);
}

Estimator::~Estimator() = default;
void Estimator::add(const Listing& listing) { state_->add(listing); }
Estimate Estimator::run() { return state_->run(); }

}  // namespace tegula::simulation
