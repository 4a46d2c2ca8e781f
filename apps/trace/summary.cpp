// The figures of a trace, and what changed from one to another: docs/traces.md says how each is defined.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <stdexcept>

#include "apps/trace/trace.hpp"

namespace tegula::trace {

using nlohmann::ordered_json;

namespace {

struct Sum {
  std::int64_t tasks = 0;
  double us = 0, flops = 0;
};

// The GEMM peak of a worker in flop/s, 0 where nobody has measured it.
double peak(const Trace& trace) {
  const auto value = trace.run.value("gemm_peak_gflops", nlohmann::json());
  return value.is_number() ? value.get<double>() * 1e9 : 0;
}

ordered_json rows(const std::vector<std::string>& names, const std::vector<Sum>& sums, double peak_flops) {
  double all = 0;
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < sums.size(); ++i) all += sums[i].us, order.push_back(i);
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return sums[a].us > sums[b].us; });
  ordered_json table = ordered_json::array();
  for (const std::size_t i : order) {
    const double rate = sums[i].us > 0 ? sums[i].flops / (sums[i].us * 1e-6) : 0;
    table.push_back({{"name", names[i]},
                     {"tasks", sums[i].tasks},
                     {"seconds", sums[i].us * 1e-6},
                     {"share", all > 0 ? sums[i].us / all : 0},
                     {"gflops", rate * 1e-9},
                     {"share_of_peak", peak_flops > 0 ? ordered_json(rate / peak_flops) : ordered_json()}});
  }
  return table;
}

// Longest chain of kernels of which each waited for the one before, messages counted as 0: no machine with however many
// workers and however fast links does this program in less.
double critical_path_us(const Trace& trace) {
  std::map<std::uint64_t, std::vector<std::uint64_t>> users;
  std::map<std::uint64_t, std::size_t> missing;
  std::map<std::uint64_t, double> begin;
  std::vector<std::uint64_t> ready;
  for (const auto& [job, what] : trace.jobs) {
    const std::set<std::uint64_t> needs(what.needs.begin(), what.needs.end());
    for (const std::uint64_t need : needs)
      if (trace.jobs.contains(need)) users[need].push_back(job), ++missing[job];
    if (!missing.contains(job)) ready.push_back(job);
  }
  double longest = 0;
  std::size_t done = 0;
  for (; !ready.empty(); ++done) {
    const std::uint64_t job = ready.back();
    ready.pop_back();
    const double end = begin[job] + trace.jobs.at(job).duration;
    longest = std::max(longest, end);
    for (const std::uint64_t user : users[job]) {
      begin[user] = std::max(begin[user], end);
      if (--missing[user] == 0) ready.push_back(user);
    }
  }
  if (done < trace.jobs.size())
    throw std::runtime_error(
        "tasks.rec: tasks wait for each other in a circle; the files of the trace are damaged");
  return longest;
}

// Time within which no worker of the rank runs a kernel. Tasks are in order of their start.
double without_kernel_us(const Trace& trace, int rank) {
  double covered = 0, until = 0;
  for (const Task& task : trace.tasks) {
    if (trace.workers[task.worker].rank != rank) continue;
    covered += std::max(0.0, task.end - std::max(task.start, until));
    until = std::max(until, task.end);
  }
  return trace.duration - covered;
}

ordered_json per_worker(const Trace& trace) {
  std::vector<double> kernels(trace.workers.size(), 0);
  std::vector<std::map<State, double>> stays(trace.workers.size());
  for (const Task& task : trace.tasks) kernels[task.worker] += task.end - task.start;
  for (const Stay& stay : trace.states) stays[stay.worker][stay.state] += stay.end - stay.start;
  ordered_json table = ordered_json::array();
  for (std::size_t i = 0; i < trace.workers.size(); ++i) {
    if (trace.workers[i].kind == "mpi") continue;
    table.push_back({{"rank", trace.workers[i].rank},
                     {"worker", trace.workers[i].name},
                     {"kernel_s", kernels[i] * 1e-6},
                     {"idle_s", stays[i][State::idle] * 1e-6},
                     {"overhead_s", stays[i][State::overhead] * 1e-6},
                     {"scheduling_s", stays[i][State::scheduling] * 1e-6},
                     {"transfer_s", stays[i][State::transfer] * 1e-6}});
  }
  return table;
}

ordered_json per_rank(const Trace& trace) {
  ordered_json table = ordered_json::array();
  for (int rank = 0; rank < static_cast<int>(trace.ranks.size()); ++rank) {
    double busy = 0, mpi = 0, peak_bytes = 0;
    std::uint64_t sent = 0, received = 0;
    for (const Task& task : trace.tasks)
      if (trace.workers[task.worker].rank == rank) busy += task.end - task.start;
    for (const Stay& stay : trace.states)
      if (trace.workers[stay.worker].rank == rank && stay.state == State::mpi) mpi += stay.end - stay.start;
    for (const Message& message : trace.messages) {
      if (message.from == rank) sent += message.bytes;
      if (message.to == rank) received += message.bytes;
    }
    for (const MemoryUse& use : trace.memory)
      if (use.rank == rank) peak_bytes = std::max(peak_bytes, *std::ranges::max_element(use.bytes));
    table.push_back({{"rank", rank},
                     {"busy_s", busy * 1e-6},
                     {"mpi_s", mpi * 1e-6},
                     {"sent_bytes", sent},
                     {"received_bytes", received},
                     {"peak_bytes", peak_bytes},
                     {"bubble_share", without_kernel_us(trace, rank) / trace.duration}});
  }
  return table;
}

ordered_json figures(const Trace& trace) {
  std::vector<Sum> ops(trace.ops.size()), layers(trace.layers.size());
  double all = 0;
  for (const Task& task : trace.tasks) {
    all += task.end - task.start;
    for (Sum* sum : {&ops[task.op], &layers[task.layer]})
      ++sum->tasks, sum->us += task.end - task.start, sum->flops += task.flops;
  }
  const auto workers = std::ranges::count_if(trace.workers, [](const Worker& w) { return w.kind != "mpi"; });
  const double area = all / static_cast<double>(std::max<std::int64_t>(workers, 1)),
               critical = critical_path_us(trace);
  return {{"per_op", rows(trace.ops, ops, peak(trace))},
          {"per_layer", rows(trace.layers, layers, peak(trace))},
          {"per_worker", per_worker(trace)},
          {"per_rank", per_rank(trace)},
          {"bounds",
           {{"makespan_s", trace.duration * 1e-6},
            {"area_bound_s", area * 1e-6},
            {"critical_path_s", critical * 1e-6},
            {"efficiency", std::max(area, critical) / trace.duration}}}};
}

template <class Rows, class Value>
ordered_json column(const Rows& rows, Value value) {
  ordered_json all = ordered_json::array();
  for (const auto& row : rows) all.push_back(value(row));
  return all;
}

}  // namespace

ordered_json report(const Trace& trace) {
  std::set<std::string> hosts;
  for (const auto& rank : trace.ranks) hosts.insert(rank["host"].get<std::string>());
  std::set<std::int64_t> steps;
  for (const Task& task : trace.tasks)
    if (task.step > 0) steps.insert(task.step);
  std::vector<std::vector<std::uint64_t>> matrix(trace.ranks.size(),
                                                 std::vector<std::uint64_t>(trace.ranks.size(), 0));
  for (const Message& message : trace.messages) matrix[message.from][message.to] += message.bytes;

  ordered_json r{{"format", "tegula-report/1"}};
  r["run"] = {{"command", trace.run["command"]},
              {"date", trace.run["date"]},
              {"hosts", hosts},
              {"ranks", trace.ranks.size()},
              {"starpu", trace.run["starpu"]},
              {"simulated", trace.run.value("simulated", false)},
              {"steps", steps.size()},
              {"seconds", trace.duration * 1e-6},
              {"plan", trace.run["plan"]},
              {"gemm_peak_gflops", peak(trace) > 0 ? ordered_json(peak(trace) * 1e-9) : ordered_json()}};
  r["workers"] = column(trace.workers, [](const Worker& w) -> ordered_json {
    return {{"rank", w.rank}, {"name", w.name}, {"kind", w.kind}};
  });
  r["layers"] = trace.layers;
  r["ops"] = trace.ops;
  r["passes"] = pass_names;
  const auto& tasks = trace.tasks;
  r["tasks"] = {{"worker", column(tasks, [](const Task& t) { return t.worker; })},
                {"start_us", column(tasks, [](const Task& t) { return t.start; })},
                {"duration_us", column(tasks, [](const Task& t) { return t.end - t.start; })},
                {"layer", column(tasks, [](const Task& t) { return t.layer; })},
                {"op", column(tasks, [](const Task& t) { return t.op; })},
                {"pass", column(tasks, [](const Task& t) { return static_cast<int>(t.pass); })},
                {"tile", column(tasks, [](const Task& t) { return t.tile; })},
                {"micro_batch", column(tasks, [](const Task& t) { return t.micro_batch; })},
                {"step", column(tasks, [](const Task& t) { return t.step; })},
                {"flops", column(tasks, [](const Task& t) { return t.flops; })}};
  const auto& states = trace.states;
  r["states"] = {{"worker", column(states, [](const Stay& s) { return s.worker; })},
                 {"start_us", column(states, [](const Stay& s) { return s.start; })},
                 {"duration_us", column(states, [](const Stay& s) { return s.end - s.start; })},
                 {"state", column(states, [](const Stay& s) { return static_cast<int>(s.state); })}};
  r["state_names"] = state_names;
  const auto& messages = trace.messages;
  r["messages"] = {{"from", column(messages, [](const Message& m) { return m.from; })},
                   {"to", column(messages, [](const Message& m) { return m.to; })},
                   {"start_us", column(messages, [](const Message& m) { return m.start; })},
                   {"duration_us", column(messages, [](const Message& m) { return m.end - m.start; })},
                   {"bytes", column(messages, [](const Message& m) { return m.bytes; })},
                   {"what", column(messages, [](const Message& m) { return m.what; })}};
  r["memory"] = column(trace.memory, [](const MemoryUse& use) -> ordered_json {
    return {{"rank", use.rank}, {"node", use.node}, {"time_us", use.time}, {"bytes", use.bytes}};
  });
  r["communication_bytes"] = matrix;
  r["loss"] = nullptr;
  if (!trace.losses.empty())
    r["loss"] = {{"step", column(trace.losses, [](const auto& loss) { return loss.first; })},
                 {"value", column(trace.losses, [](const auto& loss) { return loss.second; })}};
  r["summary"] = figures(trace);
  return r;
}

namespace {

std::string percent(const ordered_json& share) {
  return share.is_null() ? "-" : fmt::format("{:.1f} %", 100 * share.get<double>());
}

double number(const ordered_json& row, const char* key) { return row.at(key).get<double>(); }

void add_rows(std::string& text, const std::string& title, const ordered_json& table) {
  text += fmt::format("\n{:<32} {:>8} {:>10} {:>8} {:>9} {:>8}\n", title, "tasks", "seconds", "share",
                      "GFLOP/s", "of peak");
  for (const auto& row : table)
    text += fmt::format("{:<32} {:>8} {:>10.4f} {:>8} {:>9.1f} {:>8}\n", row["name"].get<std::string>(),
                        row["tasks"].get<std::int64_t>(), number(row, "seconds"), percent(row["share"]),
                        number(row, "gflops"), percent(row["share_of_peak"]));
}

}  // namespace

std::string summary(const ordered_json& report) {
  const auto& run = report["run"];
  const auto& all = report["summary"];
  std::string text =
      fmt::format("{}\n{}, {} rank{} on {} host{}, StarPU {}{}\n", run["command"].get<std::string>(),
                  run["date"].get<std::string>(), run["ranks"].get<int>(), run["ranks"] == 1 ? "" : "s",
                  run["hosts"].size(), run["hosts"].size() == 1 ? "" : "s", run["starpu"].get<std::string>(),
                  run["simulated"].get<bool>() ? ", simulated" : "");
  text +=
      fmt::format("{} steps, {} tasks, {} messages in {:.4f} s\n", run["steps"].get<std::int64_t>(),
                  report["tasks"]["op"].size(), report["messages"]["from"].size(), number(run, "seconds"));
  add_rows(text, "op", all["per_op"]);
  add_rows(text, "layer", all["per_layer"]);
  text += fmt::format("\n{:<6} {:<10} {:>10} {:>10} {:>10} {:>10} {:>10}   seconds\n", "rank", "worker",
                      "kernels", "idle", "overhead", "scheduling", "transfer");
  for (const auto& row : all["per_worker"])
    text += fmt::format("{:<6} {:<10} {:>10.4f} {:>10.4f} {:>10.4f} {:>10.4f} {:>10.4f}\n",
                        row["rank"].get<int>(), row["worker"].get<std::string>(), number(row, "kernel_s"),
                        number(row, "idle_s"), number(row, "overhead_s"), number(row, "scheduling_s"),
                        number(row, "transfer_s"));
  text += fmt::format("\n{:<6} {:>10} {:>10} {:>12} {:>12} {:>12} {:>9}\n", "rank", "busy s", "MPI s",
                      "sent MB", "received MB", "peak MB", "bubble");
  for (const auto& row : all["per_rank"])
    text += fmt::format("{:<6} {:>10.4f} {:>10.4f} {:>12.3f} {:>12.3f} {:>12.3f} {:>9}\n",
                        row["rank"].get<int>(), number(row, "busy_s"), number(row, "mpi_s"),
                        number(row, "sent_bytes") * 1e-6, number(row, "received_bytes") * 1e-6,
                        number(row, "peak_bytes") * 1e-6, percent(row["bubble_share"]));
  const auto& matrix = report["communication_bytes"];
  for (std::size_t from = 0; from < matrix.size(); ++from)
    for (std::size_t to = 0; to < matrix.size(); ++to)
      if (matrix[from][to] != 0)
        text += fmt::format("rank {} to {}: {} bytes\n", from, to, matrix[from][to].get<std::uint64_t>());
  const auto& bounds = all["bounds"];
  text += fmt::format("\nmakespan {:.4f} s, area bound {:.4f} s, critical path {:.4f} s, efficiency {}\n",
                      number(bounds, "makespan_s"), number(bounds, "area_bound_s"),
                      number(bounds, "critical_path_s"), percent(bounds["efficiency"]));
  return text;
}

namespace {

// Seconds per step by name, for what two reports have in common or not.
struct Change {
  std::string name;
  double before = 0, after = 0;
};

void add_changes(std::string& text, const std::string& title, std::vector<Change> changes) {
  std::erase_if(changes, [](const Change& c) { return c.before == c.after; });
  if (changes.empty()) return;
  std::ranges::stable_sort(changes, std::ranges::greater(),
                           [](const Change& c) { return std::abs(c.after - c.before); });
  text += fmt::format("\n{:<32} {:>12} {:>12} {:>12} {:>9}\n", title, "before", "after", "change", "");
  for (const Change& c : changes)
    text += fmt::format("{:<32} {:>12.6g} {:>12.6g} {:>+12.6g} {:>9}\n", c.name, c.before, c.after,
                        c.after - c.before,
                        c.before > 0 ? fmt::format("{:+.1f} %", 100 * (c.after / c.before - 1)) : "new");
}

double steps_of(const ordered_json& report) { return std::max(1.0, number(report["run"], "steps")); }

std::vector<Change> changes_of(const ordered_json& before, const ordered_json& after, const char* table) {
  std::vector<Change> changes;
  const auto find = [&](const std::string& name) -> Change& {
    for (Change& c : changes)
      if (c.name == name) return c;
    return changes.emplace_back(Change{name});
  };
  for (const auto& row : before["summary"][table])
    find(row["name"]).before += 1e3 * number(row, "seconds") / steps_of(before);
  for (const auto& row : after["summary"][table])
    find(row["name"]).after += 1e3 * number(row, "seconds") / steps_of(after);
  return changes;
}

double total(const ordered_json& report, const char* table, const char* key) {
  double sum = 0;
  for (const auto& row : report["summary"][table]) sum += number(row, key);
  return sum;
}

}  // namespace

std::string difference(const ordered_json& before, const ordered_json& after) {
  std::string text;
  const auto per_step = [&](const char* name, const char* table, const char* key, double unit) -> Change {
    return {name, unit * total(before, table, key) / steps_of(before),
            unit * total(after, table, key) / steps_of(after)};
  };
  add_changes(
      text, "whole, ms per step",
      {{"makespan", 1e3 * number(before["summary"]["bounds"], "makespan_s") / steps_of(before),
        1e3 * number(after["summary"]["bounds"], "makespan_s") / steps_of(after)},
       {"critical path", 1e3 * number(before["summary"]["bounds"], "critical_path_s") / steps_of(before),
        1e3 * number(after["summary"]["bounds"], "critical_path_s") / steps_of(after)}});
  add_changes(text, "op, ms per step", changes_of(before, after, "per_op"));
  add_changes(text, "layer, ms per step", changes_of(before, after, "per_layer"));
  add_changes(
      text, "workers, ms per step",
      {per_step("kernels", "per_worker", "kernel_s", 1e3), per_step("idle", "per_worker", "idle_s", 1e3),
       per_step("overhead", "per_worker", "overhead_s", 1e3),
       per_step("scheduling", "per_worker", "scheduling_s", 1e3),
       per_step("transfer", "per_worker", "transfer_s", 1e3), per_step("MPI", "per_rank", "mpi_s", 1e3)});
  const auto waited = [](const ordered_json& report) {
    double sum = 0;
    for (const auto& us : report["messages"]["duration_us"]) sum += us.get<double>();
    return 1e-3 * sum / steps_of(report);
  };
  add_changes(text, "messages, per step",
              {per_step("MB", "per_rank", "sent_bytes", 1e-6),
               {"number", static_cast<double>(before["messages"]["from"].size()) / steps_of(before),
                static_cast<double>(after["messages"]["from"].size()) / steps_of(after)},
               {"ms on their way, in sum", waited(before), waited(after)}});
  return text.empty() ? "no difference\n" : text.substr(1);
}

}  // namespace tegula::trace
