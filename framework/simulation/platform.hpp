// What SimGrid and the StarPU built for it read about the machines of a simulated job.
#pragma once

#include <filesystem>
#include <vector>

#include "framework/simulation/cluster.hpp"

namespace tegula::simulation {

// The job's hosts and links, as SimGrid's XML: messages share rank, node and wide-area links as the estimator has it, but flow together
// where the estimator has them wait for each other.
std::string platform_xml(const Cluster& cluster, const std::vector<Cluster::Seat>& seats);

// Writes platform.xml, hosts (a line for each rank) and StarPU's files about buses into the folder.
void write_platform(const Cluster& cluster, const std::vector<Cluster::Seat>& seats,
                    const std::filesystem::path& folder);

// The name under which StarPU finds the buses of a rank's node.
std::string bus_name(const Cluster::Seat& seat);

}  // namespace tegula::simulation
