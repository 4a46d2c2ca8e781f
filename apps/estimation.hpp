// What a step of a plan takes on a described cluster, found and told the same way by every program.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tegula/tegula.hpp>
#include <vector>

#include "framework/io/progress.hpp"
#include "framework/simulation/estimate.hpp"

namespace tegula::apps {

struct Estimation {
  simulation::Cluster cluster;
  std::vector<simulation::Cluster::Seat> seats;
  simulation::Estimate found;
  double compile_seconds = 0, estimate_seconds = 0;

  Estimation(simulation::Cluster machines, int ranks, int per_node)
      : cluster(std::move(machines)), seats(cluster.seats(ranks, per_node)) {}

  void run(Graph& graph, const Plan& plan, const CompileOptions& options) {
    const io::Stopwatch all;
    simulation::Estimator estimator(cluster, seats);
    const auto ranks = static_cast<int>(seats.size());
    for (int rank = 0; rank < ranks; ++rank) {
      const io::Stopwatch compiling;
      const Listing listing = lower(graph, plan, rank, ranks, options);
      compile_seconds += compiling.seconds();
      estimator.add(listing);
    }
    found = estimator.run();
    estimate_seconds = all.seconds() - compile_seconds;
  }

  // `items`, of a kind such as tokens, are what a step works on; `dtype` is what the peak is of.
  nlohmann::ordered_json json(double items, DType dtype) const {
    double flops = 0, peak = 0, bubble = 0, sent = 0, most_sent = 0;
    std::int64_t most_memory = 0;
    for (std::size_t i = 0; i < seats.size(); ++i) {
      const simulation::Estimate::Rank& rank = found.ranks[i];
      const simulation::Device& device = cluster.device(seats[i]);
      const auto rate = device.flops.find(dtype);
      flops += rank.flops;
      peak += (rate == device.flops.end() ? device.flops.at(DType::f32) : rate->second) * seats[i].workers;
      bubble += rank.bubble / static_cast<double>(seats.size());
      sent += rank.sent_bytes;
      most_sent = std::max(most_sent, rank.sent_bytes);
      most_memory = std::max(most_memory, rank.peak_bytes);
    }
    return {{"cluster", cluster.name},
            {"ranks", seats.size()},
            {"nodes", seats.back().node + 1},
            {"step_s", found.seconds},
            {"items_per_s", items / found.seconds},
            {"flops", flops},
            {"share_of_peak", flops / found.seconds / peak},
            {"idle", bubble},
            {"sent_bytes", sent},
            {"most_sent_bytes", most_sent},
            {"most_memory_bytes", most_memory},
            {"fits", too_full() < 0},
            {"joules", found.joules},
            {"tasks", found.tasks},
            {"messages", found.messages},
            {"compile_s", compile_seconds},
            {"estimate_s", estimate_seconds}};
  }

  std::string text(double items, const char* kind, DType dtype) const {
    return figures(items, kind, dtype) +
           fmt::format(
               "from {} tasks and {} messages per step; compiled in {:.1f} s, estimated in {:.2f} s\n",
               found.tasks, found.messages, compile_seconds, estimate_seconds);
  }
  // The same without how it was found.
  std::string figures(double items, const char* kind, DType dtype) const {
    const nlohmann::ordered_json j = json(items, dtype);
    auto number = [&](const char* key) { return j[key].get<double>(); };
    return fmt::format("{}: {} ranks on {} nodes\n", cluster.name, seats.size(), seats.back().node + 1) +
           fmt::format("step     {:.4g} s, {:.0f} {}/s, {:.1f} % of peak\n", found.seconds,
                       number("items_per_s"), kind, 100 * number("share_of_peak")) +
           fmt::format("idle     {:.1f} % of the devices' time\n", 100 * number("idle")) +
           fmt::format("sent     {:.2f} GB per step, by one rank at most {:.3f} GB\n",
                       number("sent_bytes") * 1e-9, number("most_sent_bytes") * 1e-9) +
           fmt::format("memory   {:.2f} GB of tiles on one rank at most\n",
                       number("most_memory_bytes") * 1e-9) +
           fmt::format("energy   {:.3g} kJ per step, {:.3g} J per 1,000 {}\n", found.joules * 1e-3,
                       1000 * found.joules / items, kind);
  }

  // The first rank whose tiles need more memory than it has, or -1.
  int too_full() const {
    for (std::size_t i = 0; i < seats.size(); ++i)
      if (found.ranks[i].peak_bytes > cluster.memory(seats[i])) return static_cast<int>(i);
    return -1;
  }
  std::string warning() const {
    const int rank = too_full();
    if (rank < 0) return {};
    return fmt::format(
        "rank {} needs {:.1f} GB, but has {:.1f}: it would not fit; recompute, take smaller micro-batches or "
        "more ranks\n",
        rank, static_cast<double>(found.ranks[rank].peak_bytes) * 1e-9,
        static_cast<double>(cluster.memory(seats[rank])) * 1e-9);
  }
};

}  // namespace tegula::apps
