// Which cores and GPUs of its node a rank takes. Ranks of one node divide what they may use among themselves, so
// that `mpiexec -n 2` needs no binding options.
#pragma once

#include <vector>

#include "framework/runtime/job.hpp"

namespace tegula::detail {

struct NodeShare {
  int node = 0, nodes = 1;      // number of this node among the nodes of the job
  std::vector<unsigned> cores;  // of this rank; each by the hwloc logical index of its first processing unit
  bool shared = false;          // other ranks use the same cores: fewer cores than ranks
  std::vector<unsigned> gpus;   // of this rank, by CUDA device number
};

// Collective. Also binds the process to its cores, so that the threads it starts stay there. A binding that the
// user asked of the launcher is respected; the one that Open MPI makes by itself (one core each) is undone.
NodeShare share_node(const Job& job);

}  // namespace tegula::detail
