// Cluster: machines that a program may be asked about, whether anybody here owns them or not, as a file describes them (see
// docs/simulation.md). Units are seconds, bytes, floating-point operations and watts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/dtype.hpp"
#include "kernels/op.hpp"

namespace tegula::simulation {

struct Link {
  double bandwidth;  // bytes per second, each way
  double latency;    // seconds
};

// What a task takes on a device: its overhead, then its arithmetic, then its memory traffic, at rates that were measured for the op or
// else at the op's share of the peak and the memory's bandwidth. Not the longer of the last two, as a roofline has it: within one
// task they hardly overlap, packing before a product or the passes of a norm. The one formula of planner, estimator and simulator.
struct Rates {
  // What kernels of a size took, as a multiple of what the formula says.
  struct Correction {
    double flops, bytes, ratio;
  };
  double overhead, flops, bandwidth;
  std::vector<Correction> corrections = {};
  double outside = 0;  // seconds beside the kernel, which nothing corrects

  double seconds(double work, double bytes) const {
    const double kernel = overhead + work / flops + bytes / bandwidth;
    return outside + (corrections.empty() ? kernel : kernel * correction(work, bytes));
  }
  // The ratios of sizes nearby, the nearer the more; far from all of them 1.
  double correction(double work, double bytes) const;
};

// One core, or one GPU.
struct Device {
  std::string name;
  bool gpu = false;
  double overhead = 0;            // seconds of a task beside its kernel
  std::map<DType, double> flops;  // per second, at most
  double bandwidth = 0;           // of its memory
  std::int64_t memory = 0;        // bytes, of a GPU's own; 0: that of the node
  double power = 0, idle_power = 0;
  // Shares of `flops` that ops reach; "other": those that are not named.
  std::map<std::string, double, std::less<>> efficiency;
  // Of kernels, by "gemm f32" and the like; a rate may be infinite.
  std::map<std::string, Rates, std::less<>> measured;
};

Rates rates_of(const OpInfo& op, DType dtype, const Device& device);
double task_seconds(const OpInfo& op, const void* attributes, DType dtype, const Device& device);

struct NodeType {
  std::string name;
  Device core, gpu;
  int cores = 0, gpus = 0;
  std::int64_t memory = 0;
  Link shared{};             // between ranks on one node, through its memory
  Link pcie{};               // between its memory and each GPU
  std::optional<Link> peer;  // between its GPUs directly
  Link network{};            // of the node
  double power = 0;          // beside its devices
};

struct Cluster {
  struct Nodes {
    int type, count;
    std::string site;
  };
  // Between two sites, shared by all that goes that way.
  struct WideLink {
    std::string a, b;
    Link link;
  };
  std::string name;
  std::vector<NodeType> types;
  std::vector<Nodes> nodes;
  std::vector<WideLink> wide;

  // Where a rank sits: on a node, with some of its devices. Ranks fill node after node.
  struct Seat {
    int node, type;  // numbers
    int site;        // of Cluster::nodes
    int place;       // among the node's ranks
    int workers;     // GPUs where the node has any, else cores
  };
  // Throws std::invalid_argument where there are more ranks than seats. per_node 0: one per GPU, or one on nodes without.
  std::vector<Seat> seats(int ranks, int per_node = 0) const;
  const Device& device(const Seat& seat) const {
    return types[seat.type].gpus > 0 ? types[seat.type].gpu : types[seat.type].core;
  }
  std::int64_t memory(const Seat& seat) const;  // of a rank
};

// Throws std::runtime_error where there is no such dtype.
DType find_dtype(const std::string& name);

// Throws std::runtime_error, starting with "name:line:", for what is not TOML, unknown keys, devices and sites that there are not,
// rates that are not positive.
Cluster parse_cluster(const std::string& text, const std::string& name);
Cluster read_cluster(const std::filesystem::path& file);

// A core of a current server: for plans where no machine is named.
const Device& typical_core();

}  // namespace tegula::simulation
