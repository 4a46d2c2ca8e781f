#include "framework/simulation/platform.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <set>
#include <stdexcept>

#include "framework/io/file.hpp"
#include "framework/runtime/simulated.hpp"

namespace tegula::simulation {

namespace {

constexpr double no_latency = 0;

std::string link(const std::string& id, double bandwidth, double latency) {
  return fmt::format(R"(<link id="{}" bandwidth="{:.0f}Bps" latency="{:.9f}s"/>)"
                     "\n",
                     id, bandwidth, latency);
}

std::string in_rank(std::size_t rank, const std::string& host) {
  return fmt::format("StarPU-MPI{}-{}", rank, host);
}

// A rank's workers and memories under the names that StarPU looks for.
std::string rank_zone(std::size_t rank, const NodeType& type, const Cluster::Seat& seat) {
  auto host = [&](const std::string& name, const char* speed, const std::string& properties = "") {
    return fmt::format("<host id=\"{}\" speed=\"{}\">{}</host>\n", in_rank(rank, name), speed, properties);
  };
  std::string text = fmt::format("<zone id=\"StarPU-MPI{}\" routing=\"Full\">\n", rank);
  text += host("MAIN", "1f") + host("RAM", "1f");
  const int gpus = type.gpus > 0 ? seat.workers : 0, cores = gpus > 0 ? 1 : seat.workers;
  for (int i = 0; i < cores; ++i) text += host(fmt::format("CPU{}", i), "1Gf");
  for (int i = 0; i < gpus; ++i)
    text += host(fmt::format("CUDA{}", i), "1Gf",
                 fmt::format(R"(<prop id="model" value="{}"/><prop id="memsize" value="{}"/>)"
                             R"(<prop id="memcpy_peer" value="{}"/>)",
                             type.gpu.name, type.gpu.memory, type.peer ? 1 : 0));
  std::string routes;
  auto route = [&](const std::string& from, const std::string& to, const Link& over) {
    const std::string id = in_rank(rank, from + "-" + to);
    text += link(id, over.bandwidth, over.latency);
    routes += fmt::format(R"(<route src="{}" dst="{}" symmetrical="NO"><link_ctn id="{}"/></route>)"
                          "\n",
                          in_rank(rank, from), in_rank(rank, to), id);
  };
  for (int i = 0; i < gpus; ++i) {
    const std::string gpu = fmt::format("CUDA{}", i);
    route("RAM", gpu, type.pcie);
    route(gpu, "RAM", type.pcie);
    for (int j = 0; j < gpus; ++j)
      if (j != i) route(gpu, fmt::format("CUDA{}", j), type.peer ? *type.peer : type.pcie);
  }
  return text + routes + "</zone>\n";
}

// The links that a message takes.
std::vector<std::string> way(const Cluster& cluster, const std::vector<Cluster::Seat>& seats,
                             std::size_t from, std::size_t to) {
  const Cluster::Seat &a = seats[from], &b = seats[to];
  if (a.node == b.node) return {fmt::format("rank{}-out", from), fmt::format("rank{}-in", to)};
  std::vector<std::string> links{fmt::format("node{}-out", a.node)};
  const std::string &here = cluster.nodes[a.site].site, &there = cluster.nodes[b.site].site;
  if (here != there)
    for (std::size_t i = 0; i < cluster.wide.size(); ++i) {
      const Cluster::WideLink& wide = cluster.wide[i];
      if (wide.a == here && wide.b == there) links.push_back(fmt::format("wide{}-out", i));
      if (wide.b == here && wide.a == there) links.push_back(fmt::format("wide{}-in", i));
    }
  links.push_back(fmt::format("node{}-in", b.node));
  return links;
}

}  // namespace

std::string platform_xml(const Cluster& cluster, const std::vector<Cluster::Seat>& seats) {
  std::string text =
      "<?xml version='1.0'?>\n<!DOCTYPE platform SYSTEM "
      "\"https://simgrid.org/simgrid.dtd\">\n<platform version=\"4.1\">\n<config>\n"
      "<prop id=\"network/TCP-gamma\" value=\"0\"/>\n"
      "<prop id=\"network/latency-factor\" value=\"1\"/>\n<prop id=\"network/bandwidth-factor\" "
      "value=\"1\"/>\n<prop id=\"network/weight-S\" value=\"0\"/>\n"
      "<prop id=\"network/crosstraffic\" value=\"0\"/>\n</config>\n<zone id=\"job\" routing=\"Full\">\n";
  for (std::size_t i = 0; i < seats.size(); ++i) text += rank_zone(i, cluster.types[seats[i].type], seats[i]);
  text += "<zone id=\"messages\" routing=\"Full\">\n";
  for (std::size_t i = 0; i < seats.size(); ++i)
    text += fmt::format("<host id=\"rank{}\" speed=\"1Gf\"/>\n", i);
  std::set<int> nodes;
  for (std::size_t i = 0; i < seats.size(); ++i) {
    const NodeType& type = cluster.types[seats[i].type];
    text += link(fmt::format("rank{}-out", i), type.shared.bandwidth, type.shared.latency);
    text += link(fmt::format("rank{}-in", i), type.shared.bandwidth, no_latency);
    if (!nodes.insert(seats[i].node).second) continue;
    text += link(fmt::format("node{}-out", seats[i].node), type.network.bandwidth, type.network.latency);
    text += link(fmt::format("node{}-in", seats[i].node), type.network.bandwidth, no_latency);
  }
  for (std::size_t i = 0; i < cluster.wide.size(); ++i)
    for (const char* end : {"out", "in"})
      text += link(fmt::format("wide{}-{}", i, end), cluster.wide[i].link.bandwidth,
                   cluster.wide[i].link.latency);
  std::string control;
  for (std::size_t from = 0; from < seats.size(); ++from)
    for (std::size_t to = 0; to < seats.size(); ++to) {
      if (from == to) continue;
      text += fmt::format(R"(<route src="rank{}" dst="rank{}" symmetrical="NO">)", from, to);
      for (const std::string& id : way(cluster, seats, from, to))
        text += fmt::format(R"(<link_ctn id="{}"/>)", id);
      text += "</route>\n";
      if (from < to)
        control += fmt::format(R"(<zoneRoute src="StarPU-MPI{}" dst="StarPU-MPI{}" gw_src="{}" gw_dst="{}">)"
                               R"(<link_ctn id="control"/></zoneRoute>)"
                               "\n",
                               from, to, in_rank(from, "MAIN"), in_rank(to, "MAIN"));
    }
  // What ranks agree on beside their tiles goes from main thread to main thread.
  text += "</zone>\n" + link("control", 1e12, no_latency) + control;
  return text + "</zone>\n</platform>\n";
}

namespace {

// The name under which StarPU finds the buses of a rank's node.
std::string bus_name(const Cluster::Seat& seat) { return fmt::format("type{}", seat.type); }

// platform.xml, hosts (a line for each rank) and StarPU's files about buses.
void write_platform(const Cluster& cluster, const std::vector<Cluster::Seat>& seats,
                    const std::filesystem::path& folder) {
  io::make_writable_folder(folder / "bus");
  io::write_file(folder / "platform.xml", platform_xml(cluster, seats));
  std::string hosts;
  for (std::size_t i = 0; i < seats.size(); ++i) hosts += fmt::format("rank{}\n", i);
  io::write_file(folder / "hosts", hosts);
  for (const Cluster::Seat& seat : seats) {
    const NodeType& type = cluster.types[seat.type];
    const int memories = 1 + (type.gpus > 0 ? seat.workers : 0);  // the node's, then those of the rank's GPUs
    auto matrix = [&](auto value) {
      std::string text = "# from each memory to each\n";
      for (int from = 0; from < memories; ++from) {
        for (int to = 0; to < memories; ++to)
          text +=
              fmt::format("{}{:.6f}", to > 0 ? "\t" : "",
                          from == to ? 0 : value(from > 0 && to > 0 && type.peer ? *type.peer : type.pcie));
        text += "\n";
      }
      return text;
    };
    const std::filesystem::path name = folder / "bus" / bus_name(seat);
    io::write_file(name.string() + ".bandwidth", matrix([](const Link& l) { return l.bandwidth * 1e-6; }));
    io::write_file(name.string() + ".latency", matrix([](const Link& l) { return l.latency * 1e6; }));
    io::write_file(name.string() + ".config", "# its presence says that there are the others\n");
  }
}

}  // namespace

std::vector<std::string> prepare(const SimulatedJob& job, const std::filesystem::path& folder) {
  const Cluster cluster = read_cluster(job.cluster_file);
  const std::vector<Cluster::Seat> seats = cluster.seats(job.ranks, job.ranks_per_node);
  for (const Cluster::Seat& seat : seats) {
    const NodeType& type = cluster.types[seat.type];
    if (type.gpus == 0 && seat.workers > STARPU_MAXCPUS)
      throw std::invalid_argument(
          fmt::format("[cluster] a rank would have all {} cores of a {}, StarPU has room for {} workers: put "
                      "more ranks on each node "
                      "(--ranks-per-node)",
                      seat.workers, type.name, STARPU_MAXCPUS));
  }
  write_platform(cluster, seats, folder);
  std::string buses;
  for (const Cluster::Seat& seat : seats) buses += bus_name(seat) + " ";
  setenv("STARPU_PERF_MODEL_DIR", folder.c_str(), 1);
  setenv("STARPU_MPI_HOSTNAMES", buses.c_str(), 1);
  setenv("STARPU_SILENT", "1", 0);  // SMPI has no threads, and nobody here calls it from two
  setenv("STARPU_SIMGRID_FETCHING_INPUT_COST", "0", 0);  // is part of a device's overhead
  setenv(detail::cluster_variable, std::filesystem::absolute(job.cluster_file).c_str(), 1);
  setenv(detail::ranks_per_node_variable, std::to_string(job.ranks_per_node).c_str(), 1);
  std::vector<std::string> command{
      "env", "MALLOC_PERTURB_=0",   // which test runners set, and which fills SimGrid's stacks over and over
      "TMPDIR=" + folder.string(),  // two simulations must not find each other's copies
      "smpirun", "-np", std::to_string(job.ranks), "-platform", folder / "platform.xml", "-hostfile",
      folder / "hosts",
      // The program's own time between two calls of MPI is that of this machine: it does not count. Each rank has libraries of its
      // own, where they have variables.
      "--cfg=smpi/simulate-computation:no",
      // What stands in the cluster's file, rather than corrections that somebody has measured on a cluster of theirs.
      "--cfg=smpi/lat-factor:0:1", "--cfg=smpi/bw-factor:0:1", "--cfg=smpi/privatize-libs:libfxt.so.2",
      "--cfg=contexts/stack-size:8192", "--log=root.thres:error", std::filesystem::absolute(job.program)};
  command.insert(command.end(), job.arguments.begin(), job.arguments.end());
  return command;
}

}  // namespace tegula::simulation
