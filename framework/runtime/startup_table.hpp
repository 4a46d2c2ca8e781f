// The table that rank 0 prints at start.
#pragma once

#include <string>

#include "framework/runtime/job.hpp"

namespace tegula::detail {

struct RankSetup {
  int node, nodes, cpu_workers, gpus;
  std::string scheduler;
};

// Collective: rank 0 prints, to standard error. Neighbouring ranks that are set up alike share a row.
void print_startup_table(const Job& job, const RankSetup& setup);

}  // namespace tegula::detail
