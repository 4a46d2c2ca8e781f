#include "framework/runtime/node_share.hpp"

#include <hwloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <type_traits>

#ifdef TEGULA_CUDA
#include <cuda_runtime_api.h>
#endif

#include "framework/runtime/simulated.hpp"

namespace tegula::detail {
namespace {

using Cpus = std::unique_ptr<std::remove_pointer_t<hwloc_bitmap_t>, decltype(&hwloc_bitmap_free)>;
using Topology = std::unique_ptr<std::remove_pointer_t<hwloc_topology_t>, decltype(&hwloc_topology_destroy)>;

Cpus no_cpus() { return {hwloc_bitmap_alloc(), hwloc_bitmap_free}; }

Topology load_topology() {
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) throw std::runtime_error("hwloc cannot describe this machine");
  Topology owner(topology, hwloc_topology_destroy);
  if (hwloc_topology_load(topology) != 0) throw std::runtime_error("hwloc cannot describe this machine");
  return owner;
}

// Ranks of this process's node that passed the same `key`: this one's place among them, and their number.
struct Peers {
  int place = 0, count = 1;
};
Peers same_key(MPI_Comm node, std::uint64_t key) {
  int size = 1, rank = 0;
  MPI_Comm_size(node, &size);
  MPI_Comm_rank(node, &rank);
  std::vector<std::uint64_t> keys(size);
  MPI_Allgather(&key, 1, MPI_UINT64_T, keys.data(), 1, MPI_UINT64_T, node);
  return {static_cast<int>(std::count(keys.begin(), keys.begin() + rank, key)),
          static_cast<int>(std::count(keys.begin(), keys.end(), key))};
}

// Open MPI binds each rank to one core unless told otherwise; it shows what it was told in the environment.
bool bound_by_launcher_default() {
  return std::getenv("OMPI_MCA_orte_bound_at_launch") && !std::getenv("OMPI_MCA_hwloc_base_binding_policy") &&
         !std::getenv("OMPI_MCA_hwloc_base_cpu_list") && !std::getenv("OMPI_MCA_rmaps_rank_file_path");
}

// What /proc tells of a process.
struct ProcessStatus {
  std::string name;
  pid_t parent = 0;
};
ProcessStatus status_of(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/status");
  ProcessStatus status;
  for (std::string word; file >> word;) {
    if (word == "Name:") file >> status.name;
    if (word == "PPid:") {
      file >> status.parent;
      break;
    }
  }
  return status;
}

// What the launcher itself may use: our nearest ancestor that is one (a script may lie between).
void undo_binding(hwloc_topology_t topology, hwloc_bitmap_t cpus) {
  for (pid_t process = status_of(getpid()).parent; process > 0;) {
    const ProcessStatus status = status_of(process);
    for (const char* launcher : {"mpiexec", "mpirun", "orte", "prte"})
      if (status.name.starts_with(launcher)) {
        Cpus wider = no_cpus();
        if (hwloc_get_proc_cpubind(topology, process, wider.get(), 0) == 0 &&
            hwloc_bitmap_isincluded(cpus, wider.get()))
          hwloc_bitmap_copy(cpus, wider.get());
        return;
      }
    process = status.parent;
  }
}

void take_cores(MPI_Comm node, NodeShare& share) {
  Topology topology = load_topology();
  Cpus allowed = no_cpus();
  if (hwloc_get_cpubind(topology.get(), allowed.get(), HWLOC_CPUBIND_PROCESS) != 0)
    hwloc_bitmap_copy(allowed.get(), hwloc_topology_get_allowed_cpuset(topology.get()));
  if (bound_by_launcher_default()) undo_binding(topology.get(), allowed.get());
  hwloc_bitmap_and(allowed.get(), allowed.get(), hwloc_topology_get_allowed_cpuset(topology.get()));

  // Cores of `allowed`, by their first usable processing unit; without core information, the processing units.
  const bool has_cores = hwloc_get_nbobjs_by_type(topology.get(), HWLOC_OBJ_CORE) > 0;
  std::vector<hwloc_obj_t> cores;
  for (hwloc_obj_t core = nullptr; (core = hwloc_get_next_obj_inside_cpuset_by_type(
                                        topology.get(), hwloc_topology_get_topology_cpuset(topology.get()),
                                        has_cores ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU, core));)
    if (hwloc_bitmap_intersects(core->cpuset, allowed.get())) cores.push_back(core);

  std::uint64_t key =
      1469598103934665603ULL;  // FNV-1a of the set: ranks that may use the same cores divide them
  for (hwloc_obj_t core : cores) key = (key ^ (core->logical_index + 1)) * 1099511628211ULL;
  const Peers peers = same_key(node, key);

  const std::size_t count = cores.size(), ranks = peers.count, place = peers.place;
  share.shared = count < ranks;
  const std::size_t first = share.shared ? 0 : place * count / ranks;
  const std::size_t last = share.shared ? count : (place + 1) * count / ranks;
  Cpus mine = no_cpus();
  Cpus of_core = no_cpus();
  for (std::size_t i = first; i < last; ++i) {
    hwloc_bitmap_and(of_core.get(), cores[i]->cpuset, allowed.get());
    hwloc_bitmap_or(mine.get(), mine.get(), of_core.get());
    const hwloc_obj_t unit = hwloc_get_pu_obj_by_os_index(topology.get(), hwloc_bitmap_first(of_core.get()));
    share.cores.push_back(unit->logical_index);
  }
  hwloc_set_cpubind(topology.get(), mine.get(), HWLOC_CPUBIND_PROCESS);
}

void take_gpus([[maybe_unused]] MPI_Comm node, [[maybe_unused]] NodeShare& share) {
#ifdef TEGULA_CUDA
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
  // A launcher may show each rank GPUs of its own: only ranks that see the same ones divide them.
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  const std::uint64_t key = std::hash<std::string>{}(visible ? visible : "all");
  const Peers peers = same_key(node, key);
  if (count == 0) return;
  if (count < peers.count) {
    share.gpus = {static_cast<unsigned>(peers.place % count)};
    return;
  }
  for (int i = peers.place * count / peers.count; i < (peers.place + 1) * count / peers.count; ++i)
    share.gpus.push_back(i);
#endif
}

}  // namespace

NodeShare share_node(const Job& job) {
  NodeShare share;
  if (simulated) {
    const SimulatedPlace& place = simulated_place(job.rank, job.size);
    // A rank that has GPUs keeps one core for host code.
    share.cores.resize(place.type().gpus > 0 ? place.seat.workers + 1 : place.seat.workers);
    if (place.type().gpus > 0) share.gpus.resize(place.seat.workers);
    std::iota(share.cores.begin(), share.cores.end(), 0);
    std::iota(share.gpus.begin(), share.gpus.end(), 0);
    share.node = place.seat.node;
    share.nodes = place.cluster.seats(job.size).back().node + 1;
    return share;
  }
  MPI_Comm node = MPI_COMM_NULL;
  MPI_Comm_split_type(job.control, MPI_COMM_TYPE_SHARED, job.rank, MPI_INFO_NULL, &node);

  // Nodes are numbered in the order of their lowest ranks.
  int node_rank = 0;
  MPI_Comm_rank(node, &node_rank);
  int leads = node_rank == 0, before = 0;
  MPI_Exscan(&leads, &before, 1, MPI_INT, MPI_SUM, job.control);
  share.node = job.rank == 0 ? 0 : before;
  MPI_Bcast(&share.node, 1, MPI_INT, 0, node);
  MPI_Allreduce(&leads, &share.nodes, 1, MPI_INT, MPI_SUM, job.control);

  take_cores(node, share);
  take_gpus(node, share);
  MPI_Comm_free(&node);
  return share;
}

}  // namespace tegula::detail
