#include "framework/simulation/cluster.hpp"

#include <cmath>
#include <limits>
#include <set>

#include "framework/io/file.hpp"
#include "framework/io/toml_file.hpp"

namespace tegula::simulation {

double Rates::correction(double work, double bytes) const {
  constexpr double reach = 0.5;  // octaves squared at which a size counts a third
  double weights = 0.05, sum = weights;
  for (const Correction& known : corrections) {
    const double x = std::log2((work + 1) / (known.flops + 1)), y = std::log2(bytes / known.bytes);
    const double weight = std::exp(-(x * x + y * y) / reach);
    weights += weight;
    sum += weight * known.ratio;
  }
  return sum / weights;
}

Rates rates_of(const OpInfo& op, DType dtype, const Device& device) {
  if (const auto known = device.measured.find(op.name + " " + std::string(name_of(dtype)));
      known != device.measured.end()) {
    Rates rates = known->second;
    rates.outside = device.overhead;
    return rates;
  }
  auto share = device.efficiency.find(op.name);
  if (share == device.efficiency.end()) share = device.efficiency.find("other");
  auto peak = device.flops.find(dtype);
  if (peak == device.flops.end()) peak = device.flops.find(DType::f32);  // what it has no rate for
  return {device.overhead, peak->second * (share == device.efficiency.end() ? 1 : share->second),
          device.bandwidth};
}

double task_seconds(const OpInfo& op, const void* attributes, DType dtype, const Device& device) {
  return rates_of(op, dtype, device).seconds(op.flops(attributes), op.operand_bytes(attributes, dtype));
}

std::vector<Cluster::Seat> Cluster::seats(int ranks, int per_node) const {
  std::vector<Seat> all;
  int node = 0;
  for (int site = 0; site < static_cast<int>(nodes.size()); ++site) {
    const NodeType& type = types[nodes[site].type];
    const int devices = type.gpus > 0 ? type.gpus : type.cores;
    const int seated = per_node > 0 ? per_node : std::max(type.gpus, 1);
    if (seated > devices)
      throw std::invalid_argument(
          fmt::format("[cluster] {} ranks on each node are more than the {} {} of a {}", seated, devices,
                      type.gpus > 0 ? "GPUs" : "cores", type.name));
    for (int i = 0; i < nodes[site].count; ++i, ++node)
      for (int place = 0; place < seated && static_cast<int>(all.size()) < ranks; ++place)
        all.push_back({node, nodes[site].type, site, place, devices / seated});
  }
  if (static_cast<int>(all.size()) < ranks)
    throw std::invalid_argument(fmt::format(
        "[cluster] {} ranks are more than the {} that {} has room for: ask for fewer, or add nodes to it",
        ranks, all.size(), name));
  return all;
}

std::int64_t Cluster::memory(const Seat& seat) const {
  const NodeType& type = types[seat.type];
  const std::int64_t own = device(seat).memory;
  if (own > 0) return own * seat.workers;
  return type.memory * seat.workers / std::max(type.cores, 1);
}

DType find_dtype(const std::string& name) {
  for (int i = 0; i <= static_cast<int>(DType::u8); ++i)
    if (name == name_of(static_cast<DType>(i))) return static_cast<DType>(i);
  throw std::runtime_error(fmt::format("there is no dtype '{}'; there are f32, f64, bf16 and f16", name));
}

namespace {

constexpr double giga = 1e9, micro = 1e-6;

class ClusterFile : io::TomlFile {
 public:
  using TomlFile::TomlFile;

  Cluster read(const std::string& name) {
    cluster_.name = name;
    // Devices before the nodes that have them, and those before their number.
    for (const char* part : {"device", "node"})
      if (const toml::node* table = all().get(part))
        each(*table, [&](const std::string& key, const toml::node& value) {
          part[0] == 'd' ? device(key, value) : node(key, value);
        });
    for (const auto& [key, entry] : all()) {
      const std::string what(key.str());
      const toml::node& value = entry;
      at(value, [&] {
        if (what == "name")
          cluster_.name = TomlFile::value<std::string>(value, "a name");
        else if (what == "nodes")
          items(value, [&](const toml::node& item) { nodes(item); });
        else if (what == "wide-area")
          items(value, [&](const toml::node& item) { wide(item); });
        else if (what != "device" && what != "node")
          throw std::runtime_error(
              fmt::format("unknown key '{}'; known are name, device, node, nodes and wide-area", what));
      });
    }
    if (cluster_.nodes.empty())
      throw std::runtime_error(name + ": has no [[nodes]]: say how many of which type there are");
    std::set<std::string> sites;
    for (const Cluster::Nodes& nodes : cluster_.nodes) sites.insert(nodes.site);
    for (const Cluster::WideLink& link : cluster_.wide)
      for (const std::string& site : {link.a, link.b})
        if (!sites.contains(site))
          throw std::runtime_error(
              fmt::format("{}: a wide-area link leads to '{}', where no nodes are", name, site));
    for (auto a = sites.begin(); a != sites.end(); ++a)
      for (auto b = std::next(a); b != sites.end(); ++b)
        if (std::ranges::none_of(cluster_.wide, [&](const Cluster::WideLink& link) {
              return (link.a == *a && link.b == *b) || (link.a == *b && link.b == *a);
            }))
          throw std::runtime_error(
              fmt::format("{}: no [[wide-area]] link between '{}' and '{}'", name, *a, *b));
    return std::move(cluster_);
  }

 private:
  template <class F>
  void items(const toml::node& node, F f) const {
    if (!node.is_array_of_tables()) throw std::runtime_error("expects tables in double brackets");
    for (const toml::node& item : *node.as_array()) at(item, [&] { f(item); });
  }
  [[noreturn]] static void unknown(const std::string& key, const char* known) {
    throw std::runtime_error(fmt::format("unknown key '{}'; known are {}", key, known));
  }
  static double number(const toml::node& node, double least = 0) {
    const std::optional<double> found = node.value<double>();
    if (!found || !node.is_number()) throw std::runtime_error("expects a number");
    if (!(*found >= least) || *found == std::numeric_limits<double>::infinity())
      throw std::runtime_error(fmt::format("{} is out of range", *found));
    return *found;
  }
  static double rate(const toml::node& node) {
    const double found = number(node);
    if (found == 0) throw std::runtime_error("a rate of 0: nothing would ever end; give a positive one");
    return found;
  }
  static int count(const toml::node& node) {
    const std::int64_t found = integer(node);
    if (found < 1 || found > (1 << 20)) throw std::runtime_error(fmt::format("{} is out of range", found));
    return static_cast<int>(found);
  }

  Link link(const toml::node& node) const {
    Link found{};
    each(node, [&](const std::string& key, const toml::node& value) {
      if (key == "bandwidth")
        found.bandwidth = rate(value) * giga;
      else if (key == "latency")
        found.latency = number(value) * micro;
      else
        unknown(key, "bandwidth (GB/s) and latency (us)");
    });
    if (found.bandwidth == 0) throw std::runtime_error("a link needs bandwidth = GB/s");
    return found;
  }

  void device(const std::string& name, const toml::node& node) {
    Device& device = devices_[name];
    device.name = name;
    each(node, [&](const std::string& key, const toml::node& value) {
      if (key == "gflops")
        each(value, [&](const std::string& dtype, const toml::node& peak) {
          device.flops[find_dtype(dtype)] = rate(peak) * giga;
        });
      else if (key == "bandwidth")
        device.bandwidth = rate(value) * giga;
      else if (key == "overhead")
        device.overhead = number(value) * micro;
      else if (key == "memory")
        device.memory = static_cast<std::int64_t>(rate(value) * giga);
      else if (key == "power")
        device.power = number(value);
      else if (key == "idle-power")
        device.idle_power = number(value);
      else if (key == "efficiency")
        each(value, [&](const std::string& op, const toml::node& share) {
          if (op != "other") find_op(op);
          device.efficiency[op] = rate(share);
          if (device.efficiency[op] > 1)
            throw std::runtime_error("an efficiency is a share of the peak: at most 1");
        });
      else if (key == "measured")
        each(value, [&](const std::string& op, const toml::node& rates) { measured(device, op, rates); });
      else
        unknown(key, "gflops, bandwidth, overhead, memory, power, idle-power, efficiency and measured");
    });
    if (!device.flops.contains(DType::f32) || device.bandwidth == 0)
      throw std::runtime_error(
          fmt::format("device {} needs gflops = {{f32 = ...}} and bandwidth = GB/s", name));
  }

  void measured(Device& device, const std::string& op, const toml::node& node) const {
    const std::size_t space = op.find(' ');
    find_op(op.substr(0, space));
    if (space == std::string::npos) throw std::runtime_error("name op and dtype, as in \"gemm f32\"");
    find_dtype(op.substr(space + 1));
    constexpr double infinity = std::numeric_limits<double>::infinity();
    Rates& found = device.measured[op] = {0, infinity, infinity};
    each(node, [&](const std::string& key, const toml::node& value) {
      if (key == "overhead")
        found.overhead = number(value) * micro;
      else if (key == "gflops")
        found.flops = rate(value) * giga;
      else if (key == "bandwidth")
        found.bandwidth = rate(value) * giga;
      else if (key == "corrections")
        found.corrections = corrections(value);
      else
        unknown(key, "overhead (us), gflops, bandwidth (GB/s) and corrections");
    });
  }

  static std::vector<Rates::Correction> corrections(const toml::node& node) {
    const char* const expected = "expects corrections = [[FLOPS, BYTES, RATIO], ...]";
    if (!node.is_array()) throw std::runtime_error(expected);
    std::vector<Rates::Correction> found;
    for (const toml::node& item : *node.as_array()) {
      const toml::array* triple = item.as_array();
      if (!triple || triple->size() != 3) throw std::runtime_error(expected);
      found.push_back({number((*triple)[0]), rate((*triple)[1]), rate((*triple)[2])});
    }
    return found;
  }

  const Device& known_device(const toml::node& node) const {
    const auto name = value<std::string>(node, "the name of a device");
    if (const auto known = devices_.find(name); known != devices_.end()) return known->second;
    std::string all;
    for (const auto& entry : devices_) all += (all.empty() ? "" : ", ") + entry.first;
    throw std::runtime_error(
        fmt::format("there is no device '{}'; the file has {}", name, all.empty() ? "none" : all));
  }

  void node(const std::string& name, const toml::node& node) {
    NodeType type;
    type.name = name;
    type.shared = {10 * giga, 1 * micro};
    each(node, [&](const std::string& key, const toml::node& value) {
      if (key == "cpu")
        type.core = known_device(value);
      else if (key == "gpu") {
        type.gpu = known_device(value);
        type.gpu.gpu = true;
      } else if (key == "cores")
        type.cores = count(value);
      else if (key == "gpus")
        type.gpus = count(value);
      else if (key == "memory")
        type.memory = static_cast<std::int64_t>(rate(value) * giga);
      else if (key == "power")
        type.power = number(value);
      else if (key == "shared-memory")
        type.shared = link(value);
      else if (key == "pcie")
        type.pcie = link(value);
      else if (key == "nvlink")
        type.peer = link(value);
      else if (key == "network")
        type.network = link(value);
      else
        unknown(key, "cpu, cores, gpu, gpus, memory, power, shared-memory, pcie, nvlink and network");
    });
    const char* missing =
        type.cores == 0 || type.core.name.empty()   ? "cpu = \"DEVICE\" and cores = N"
        : type.memory == 0                          ? "memory = GB"
        : type.network.bandwidth == 0               ? "network = {bandwidth = GB/s, latency = us}"
        : (type.gpus > 0) != !type.gpu.name.empty() ? "both gpu = \"DEVICE\" and gpus = N, or neither"
        : type.gpus > 0 && type.pcie.bandwidth == 0 ? "pcie = {bandwidth = GB/s, latency = us}"
        : type.gpus > 0 && type.gpu.memory == 0     ? "a GPU whose device has memory = GB"
                                                    : nullptr;
    if (missing) throw std::runtime_error(fmt::format("node {} needs {}", name, missing));
    cluster_.types.push_back(type);
  }

  void nodes(const toml::node& node) {
    Cluster::Nodes nodes{-1, 1, ""};
    each(node, [&](const std::string& key, const toml::node& value) {
      if (key == "type") {
        const auto name = TomlFile::value<std::string>(value, "the name of a node type");
        const auto known = std::ranges::find(cluster_.types, name, &NodeType::name);
        if (known == cluster_.types.end())
          throw std::runtime_error(fmt::format("there is no [node.{}]", name));
        nodes.type = static_cast<int>(known - cluster_.types.begin());
      } else if (key == "count")
        nodes.count = count(value);
      else if (key == "site")
        nodes.site = TomlFile::value<std::string>(value, "a name");
      else
        unknown(key, "type, count and site");
    });
    if (nodes.type < 0) throw std::runtime_error("[[nodes]] needs type = \"NODE\"");
    cluster_.nodes.push_back(nodes);
  }

  void wide(const toml::node& node) {
    Cluster::WideLink wide;
    each(node, [&](const std::string& key, const toml::node& value) {
      if (key == "between") {
        const std::vector<std::string> sites = strings(value, "two sites");
        if (sites.size() != 2 || sites[0] == sites[1])
          throw std::runtime_error("expects the names of two sites");
        wide.a = sites[0];
        wide.b = sites[1];
      } else if (key == "bandwidth")
        wide.link.bandwidth = rate(value) * giga;
      else if (key == "latency")
        wide.link.latency = number(value) * micro;
      else
        unknown(key, "between, bandwidth (GB/s) and latency (us)");
    });
    if (wide.a.empty() || wide.link.bandwidth == 0)
      throw std::runtime_error("a wide-area link needs between = [\"SITE\", \"SITE\"] and bandwidth = GB/s");
    cluster_.wide.push_back(wide);
  }

  std::map<std::string, Device> devices_;
  Cluster cluster_;
};

}  // namespace

Cluster parse_cluster(const std::string& text, const std::string& name) {
  return ClusterFile(text, name).read(name);
}

Cluster read_cluster(const std::filesystem::path& file) {
  return parse_cluster(io::read_text(file), file.string());
}

const Device& typical_core() {
  // Orders of magnitude of one core of a current server. Only their ratios matter here.
  static const Device core{
      .name = "core", .overhead = 8e-6, .flops = {{DType::f32, 200e9}}, .bandwidth = 12e9};
  return core;
}

}  // namespace tegula::simulation
