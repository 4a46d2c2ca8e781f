// The flavour for SimGrid: the same sources against a StarPU whose workers, transfers and messages take simulated time on
// a described cluster. Ranks are actors of one process; kernels do not run, and what they take is task_seconds().
#pragma once

#include <starpu.h>

#include "framework/simulation/cluster.hpp"

namespace tegula::detail {

#ifdef STARPU_SIMGRID
inline constexpr bool simulated = true;
#else
inline constexpr bool simulated = false;
#endif

// What tells the ranks, which tegula-simulate starts, where they are: a cluster file, and ranks per node (0: the default).
inline constexpr const char *cluster_variable = "TEGULA_CLUSTER",
                            *ranks_per_node_variable = "TEGULA_RANKS_PER_NODE";

// Where a rank of the simulated job sits.
struct SimulatedPlace {
  simulation::Cluster cluster;
  simulation::Cluster::Seat seat;
  const simulation::NodeType& type() const { return cluster.types[seat.type]; }
  const simulation::Device& device(unsigned worker) const {
    return starpu_worker_get_type(static_cast<int>(worker)) == STARPU_CUDA_WORKER ? type().gpu : type().core;
  }
};

// Reads the variables once. Throws std::runtime_error where they are not set.
const SimulatedPlace& simulated_place(int rank, int ranks);
// The one that has been read.
const SimulatedPlace& simulated_place();

// Collective: element-wise sums. SMPI serves only the thread that StarPU drives messages with, so this goes beside it.
void sum_over_simulated_ranks(int rank, int ranks, double* values, int count);

}  // namespace tegula::detail
