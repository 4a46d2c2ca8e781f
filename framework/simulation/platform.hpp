// What SimGrid and the StarPU built for it read about the machines of a simulated job.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "framework/simulation/cluster.hpp"

namespace tegula::simulation {

// The job's hosts and links, as SimGrid's XML: messages share rank, node and wide-area links as the estimator has it, but flow together
// where the estimator has them wait for each other.
std::string platform_xml(const Cluster& cluster, const std::vector<Cluster::Seat>& seats);

// What a job takes to start: ranks per node as for Cluster::seats(), a program of the simulated flavour (a shared object).
struct SimulatedJob {
  std::filesystem::path cluster_file;
  int ranks = 1, ranks_per_node = 0;
  std::filesystem::path program;
  std::vector<std::string> arguments;
};
// Writes the platform into the folder, sets the variables that go with it and returns SimGrid's command line.
std::vector<std::string> prepare(const SimulatedJob& job, const std::filesystem::path& folder);

}  // namespace tegula::simulation
