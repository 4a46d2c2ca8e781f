// Estimator: how long a compiled program takes on a cluster, by list scheduling of the tasks and messages of all its ranks: a
// million a second, for searches among plans. What it leaves out, SimGrid has: see docs/simulation.md.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "framework/program/listing.hpp"
#include "framework/simulation/cluster.hpp"

namespace tegula::simulation {

struct Estimate {
  struct Rank {
    double busy = 0;   // seconds of its workers, together
    double flops = 0;  // of products and the like
    double sent_bytes = 0;
    std::int64_t peak_bytes = 0;
    double bubble = 0;  // share of its workers' time in which they are idle
  };
  // Per step, in a long run.
  double seconds = 0;
  double joules = 0;                     // of the nodes on which ranks sit
  std::int64_t tasks = 0, messages = 0;  // of all ranks
  std::vector<Rank> ranks;
};

class Estimator {
 public:
  // Of a job whose ranks sit there. The cluster must outlive it.
  Estimator(const Cluster& cluster, std::vector<Cluster::Seat> seats);
  // Of one rank by itself: messages take no time.
  Estimator(const Device& device, int workers);
  ~Estimator();

  // What the next rank does; each is added once, rank 0 first.
  void add(const Listing& listing);
  // Throws std::logic_error where a message has no partner or work waits for itself.
  Estimate run();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tegula::simulation
