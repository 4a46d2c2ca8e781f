// tegula-simulate: a program under StarPU's flavour for SimGrid, on a described cluster, and what its trace says.
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <system_error>

#include "apps/estimation.hpp"
#include "apps/simulate/commands.hpp"
#include "apps/trace/trace.hpp"
#include "framework/io/file.hpp"
#include "framework/simulation/platform.hpp"

namespace tegula::apps {

namespace {

namespace fs = std::filesystem;
using Command = std::vector<std::string>;

std::size_t steps_in(const trace::Trace& trace) {
  std::set<std::int64_t> steps;
  for (const trace::Task& task : trace.tasks)
    if (task.step > 0) steps.insert(task.step);
  return steps.size();
}

// Seconds per step, where steps run into each other: of the time in which the middle half of all work is done.
double step_seconds(const trace::Trace& trace, double steps) {
  std::vector<std::pair<double, double>> ends;  // and work
  double all = 0;
  for (const trace::Task& task : trace.tasks)
    if (task.step > 0) ends.emplace_back(task.end, task.end - task.start), all += task.end - task.start;
  std::ranges::sort(ends);
  double done = 0, quarter = 0;
  for (const auto& [end, work] : ends) {
    if (done < all / 4 && done + work >= all / 4) quarter = end;
    done += work;
    if (done >= all * 3 / 4) return (end - quarter) / (steps / 2) * 1e-6;
  }
  return 0;
}

// What a step takes and does, by the trace of some.
simulation::Estimate measured(const trace::Trace& trace, const Estimation& job) {
  simulation::Estimate found;
  found.ranks.resize(job.seats.size());
  constexpr std::size_t least = 4;
  const auto steps = static_cast<double>(steps_in(trace));
  if (steps < least)
    throw std::runtime_error(fmt::format(
        "the program ran {} steps: too few to tell what one takes; {} is the least", steps, least));
  found.seconds = step_seconds(trace, steps);
  const auto tasks = std::ranges::count_if(trace.tasks, [&](const trace::Task& task) {
    const std::string& op = trace.ops[task.op];
    return task.step > 0 && op != "input" && op != "output";  // of the graph: not host code
  });
  found.tasks = std::llround(static_cast<double>(tasks) / steps);
  found.messages = std::llround(static_cast<double>(trace.messages.size()) / steps);
  for (const trace::Task& task : trace.tasks) {
    const trace::Worker& worker = trace.workers[task.worker];
    simulation::Estimate::Rank& rank = found.ranks[worker.rank];
    rank.flops += task.step > 0 ? task.flops / steps : 0;
    if (task.step > 0 && (worker.kind == "cuda") == job.cluster.device(job.seats[worker.rank]).gpu)
      rank.busy += (task.end - task.start) / steps * 1e-6;
  }
  for (const trace::Message& message : trace.messages)
    found.ranks[message.from].sent_bytes += static_cast<double>(message.bytes) / steps;
  std::map<int, const simulation::NodeType*> nodes;
  for (std::size_t i = 0; i < job.seats.size(); ++i) {
    const simulation::Cluster::Seat& seat = job.seats[i];
    const simulation::Device& device = job.cluster.device(seat);
    simulation::Estimate::Rank& rank = found.ranks[i];
    const double most = seat.workers * found.seconds;
    rank.bubble = std::max(1 - rank.busy / most, 0.0);
    for (const nlohmann::json& program : trace.ranks[i].at("programs"))
      rank.peak_bytes = std::max(rank.peak_bytes, program.at("peak_bytes").get<std::int64_t>());
    found.joules += rank.busy * device.power + std::max(most - rank.busy, 0.0) * device.idle_power;
    nodes[seat.node] = &job.cluster.types[seat.type];
  }
  for (const auto& node : nodes) found.joules += node.second->power * found.seconds;
  return found;
}

// Bytes per step over each link between nodes and sites, the busiest first.
std::vector<std::pair<std::string, double>> link_bytes(const trace::Trace& trace, const Estimation& job) {
  const auto steps = static_cast<double>(steps_in(trace));
  std::map<std::string, double> links;
  for (const trace::Message& message : trace.messages) {
    const auto &from = job.seats[message.from], &to = job.seats[message.to];
    const auto bytes = static_cast<double>(message.bytes) / steps;
    if (from.node == to.node) {
      links[fmt::format("within node {}", from.node)] += bytes;
      continue;
    }
    links[fmt::format("node {} out", from.node)] += bytes;
    links[fmt::format("node {} in", to.node)] += bytes;
    const std::string &here = job.cluster.nodes[from.site].site, &there = job.cluster.nodes[to.site].site;
    if (here != there) links[fmt::format("{} to {}", here, there)] += bytes;
  }
  std::vector<std::pair<std::string, double>> sorted(links.begin(), links.end());
  std::ranges::stable_sort(sorted, std::greater(), &std::pair<std::string, double>::second);
  return sorted;
}

std::string last_lines(const fs::path& file, int count) {
  std::ifstream in(file);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);)
    if (!line.starts_with("[")) lines.push_back(line);  // what is StarPU's and SimGrid's own
  std::string text;
  for (std::size_t i = lines.size() > static_cast<std::size_t>(count) ? lines.size() - count : 0;
       i < lines.size(); ++i)
    text += "\n  | " + lines[i];
  return text;
}

bool has_flag(const Command& arguments, const std::string& name) {
  return std::ranges::any_of(
      arguments, [&](const std::string& word) { return word == name || word.starts_with(name + "="); });
}

class Folder {
 public:
  // A temporary one, which goes with the object, if no name is given.
  explicit Folder(const std::string& name) : path_(name), temporary_(name.empty()) {
    if (temporary_) {
      std::string made = fs::temp_directory_path() / "tegula-simulate-XXXXXX";
      if (!mkdtemp(made.data())) io::throw_file_error(made, "make a temporary folder", errno);
      path_ = made;
    }
    path_ = fs::absolute(path_);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code error;
    if (temporary_) fs::remove_all(path_, error);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
  bool temporary_;
};

// The simulated flavour of a program, with what a few recorded steps need.
simulation::SimulatedJob simulated(const Command& program, const fs::path& files, const fs::path& recorded) {
  simulation::SimulatedJob job{.cluster_file = {},
                               .program = program[0] + ".simulated.so",
                               .arguments = {program.begin() + 1, program.end()}};
  if (!fs::exists(job.program))
    throw std::runtime_error(
        job.program.string() +
        ": is not there; scripts/quickstart simulate builds the programs of this tree so "
        "that they can be simulated");
  if (!has_flag(program, "--steps")) job.arguments.insert(job.arguments.end(), {"--steps", "8"});
  if (!has_flag(program, "--out")) job.arguments.insert(job.arguments.end(), {"--out", files / "run"});
  job.arguments.insert(job.arguments.end(), {"--trace", recorded});
  return job;
}

}  // namespace

int simulate(int argc, char** argv) {
  std::string cluster, keep;
  std::int64_t ranks = 1, per_node = 0;
  bool json = false;
  io::Options options(
      "tegula-simulate",
      "Says what a training step takes on a described cluster, by simulating every task and message:\n"
      "  tegula-simulate --cluster apps/clusters/h100.toml --ranks 4 -- build/apps/fashion_mnist --tile "
      "batch=64\n"
      "tegula-simulate calibrate describes this machine; see its --help.");
  options.add("cluster", &cluster, "TOML file that describes the machines: docs/simulation.md")
      ->type_name("FILE")
      ->required();
  options.add("ranks", &ranks, "of the job")->check(io::at_least(1));
  options.add("ranks-per-node", &per_node, "0: one per GPU, or one on a node without")
      ->check(io::at_least(0));
  options.add("trace", &keep, "keep the trace in this folder, for tegula-trace (default: none)")
      ->type_name("DIR");
  options.add("json", &json, "print one JSON object");
  const auto end =
      std::find_if(argv, argv + argc, [](const char* word) { return std::strcmp(word, "--") == 0; });
  if (auto code = options.parse(static_cast<int>(end - argv), argv)) return *code;
  if (argv + argc - end < 2)
    throw std::invalid_argument("simulate: no program to run: add -- and its command line");
  const Command program(end + 1, argv + argc);

  Estimation job(simulation::read_cluster(cluster), static_cast<int>(ranks), static_cast<int>(per_node));
  if (!keep.empty() && fs::exists(keep) && !fs::is_empty(keep))
    throw std::runtime_error(keep + ": is not empty; remove it, or give another folder with --trace");
  const Folder files(""), recorded(keep.empty() ? files.path() / "trace" : fs::path(keep));
  const fs::path log = files.path() / "log";
  simulation::SimulatedJob to_run = simulated(program, files.path(), recorded.path());
  to_run.cluster_file = cluster;
  to_run.ranks = static_cast<int>(ranks);
  to_run.ranks_per_node = static_cast<int>(per_node);
  const Command command = simulation::prepare(to_run, files.path());
  if (isatty(STDERR_FILENO)) fmt::print(stderr, "simulating {} ranks of {} ...\n", ranks, program[0]);
  const io::Stopwatch watch;
  const std::string failed = run_program(command, log);
  // The exit code of a rank does not always reach that of the simulation.
  if (!failed.empty() || !fs::exists(recorded.path() / "run.json"))
    throw std::runtime_error(fmt::format("the simulated program failed ({}); it said:{}",
                                         failed.empty() ? "it left no trace" : failed, last_lines(log, 12)));

  const trace::Trace trace = trace::read(recorded.path());
  job.found = measured(trace, job);
  const double simulation_seconds = watch.seconds(), items = trace.run.value("items_per_step", 1.0);
  const auto kind = trace.run.value("items", std::string("steps"));
  const DType dtype = simulation::find_dtype(trace.run.value("dtype", std::string("f32")));
  const auto links = link_bytes(trace, job);
  if (json) {
    nlohmann::ordered_json object = job.json(items, dtype);
    object.erase("compile_s");
    object["simulation_s"] = simulation_seconds;
    object.erase("estimate_s");
    for (const auto& [link, bytes] : links) object["bytes"][link] = bytes;
    fmt::print("{}\n", object.dump());
    return 0;
  }
  fmt::print("{}from {} tasks and {} messages per step, simulated in {:.1f} s\n",
             job.figures(items, kind.c_str(), dtype), job.found.tasks, job.found.messages,
             simulation_seconds);
  for (std::size_t i = 0; i < links.size() && i < 8; ++i)
    fmt::print("{:<24} {:>12.3f} MB per step\n", links[i].first, links[i].second * 1e-6);
  if (links.size() > 8) fmt::print("and {} more links (--json has them all)\n", links.size() - 8);
  if (!keep.empty()) fmt::print("trace in {}: tegula-trace {}\n", keep, keep);
  if (const std::string warning = job.warning(); !warning.empty())
    fmt::print(stderr, "tegula-simulate: {}", warning);
  return 0;
}

}  // namespace tegula::apps
