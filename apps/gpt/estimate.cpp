// gpt estimate: what a training step would take on a cluster that nobody here needs to have.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "apps/gpt/commands.hpp"
#include "apps/gpt/model.hpp"
#include "framework/io/plan_file.hpp"
#include "framework/plan/plans.hpp"
#include "framework/simulation/estimate.hpp"

namespace tegula::apps {

namespace {

struct EstimateOptions {
  std::string cluster, plan, schedule = "1f1b";
  std::int64_t ranks = 1, per_node = 0, batch = 16, vocabulary = 50257, micro_batch = 1;
  io::NamedNumbers mesh;
  bool recompute = false, json = false;
  ModelOptions model;

  void add_to(io::Options& options) {
    options.add("cluster", &cluster, "TOML file that describes the machines: docs/simulation.md")
        ->type_name("FILE")
        ->required();
    options.add("ranks", &ranks, "of the job")->check(io::at_least(1));
    options.add("ranks-per-node", &per_node, "0: one per GPU, or one on a node without")
        ->check(io::at_least(0));
    options.add("batch", &batch, "sequences per step")->check(io::at_least(1));
    options.add("vocabulary", &vocabulary, "tokens")->check(io::at_least(1));
    options.add("plan", &plan, "TOML file with tiles, mesh, shards, stages and schedule: docs/plans.md")
        ->type_name("FILE");
    options.add("mesh", &mesh,
                "without --plan: data=N parts of the batch, tensor=N of heads, hidden layers and vocabulary, "
                "stage=N of the layers");
    options.add("micro-batch", &micro_batch, "without --plan: sequences in a tile of the batch")
        ->check(io::at_least(1));
    options.add("schedule", &schedule, "without --plan: of the stages")
        ->check(CLI::IsMember(schedules::names()));
    options.add("recompute", &recompute, "without --plan: blocks keep nothing but what they read");
    options.add("json", &json, "print one JSON object");
    model.add_to(options);
  }

  // The usual mix of forms.
  Plan mixed(Graph& graph, const Axis& batch_axis) const {
    std::int64_t data = 1, tensor = 1, stages = 1;
    for (const auto& [name, extent] : mesh) {
      if (name != "data" && name != "tensor" && name != "stage")
        throw std::invalid_argument("--mesh " + name +
                                    ": only data, tensor and stage are placed without a --plan");
      (name == "data" ? data : name == "tensor" ? tensor : stages) = extent;
    }
    if (data * tensor * stages != ranks)
      throw std::invalid_argument(fmt::format("--mesh: data x tensor x stage are {} ranks, --ranks {}",
                                              data * tensor * stages, ranks));
    if (batch % (data * micro_batch) != 0)
      throw std::invalid_argument(fmt::format("--batch {} does not fall into {} parts of micro-batches of {}",
                                              batch, data, micro_batch));
    Plan plan;
    plan.mesh({{"data", static_cast<int>(data)},
               {"tensor", static_cast<int>(tensor)},
               {"stage", static_cast<int>(stages)}})
        .tile(batch_axis, micro_batch)
        .group(batch_axis, static_cast<int>(batch / data / micro_batch))
        .shard(batch_axis, "data");
    for (const char* name : {"head", "hidden", "vocabulary"})
      if (const auto axis = graph.find_axis(name); axis && tensor > 1)
        plan.tile(*axis, (axis->extent() + tensor - 1) / tensor).shard(*axis, "tensor");
    plan.stages("stage", plans::even_stages(graph, static_cast<int>(stages)))
        .micro_batches(batch_axis, schedules::find(schedule));
    if (recompute)
      for (std::int64_t i = 0; i < model.layers; ++i) plan.recompute({"block" + std::to_string(i)});
    return plan;
  }
};

}  // namespace

int estimate(int argc, char** argv) {
  EstimateOptions s;
  {
    EstimateOptions first;
    io::Options options("gpt estimate", "", /*quiet=*/true);
    first.add_to(options);
    if (!options.parse(argc, argv)) s.model.use(first.model.preset);
  }
  io::Options options("gpt estimate",
                      "Says what a training step takes on a described cluster, without running it.");
  s.add_to(options);
  if (auto code = options.parse(argc, argv)) return *code;

  const simulation::Cluster cluster = simulation::read_cluster(s.cluster);
  const auto ranks = static_cast<int>(s.ranks);
  const std::vector<simulation::Cluster::Seat> seats = cluster.seats(ranks, static_cast<int>(s.per_node));
  LanguageModel net(s.model, s.batch, s.vocabulary, 1);
  layers::AdamWOptions adam{.weight_decay = 0.1};
  adam.decays = [&](const Tensor& parameter) { return net.transformer->decays(parameter); };
  adam.clip = 1;
  const auto optimizer = layers::adamw(net.graph, net.loss, net.transformer->parameters(), adam);
  const Plan plan = s.plan.empty() ? s.mixed(net.graph, net.batch) : io::read_plan(s.plan, net.graph);

  simulation::Estimator estimator(cluster, seats);
  double compiled = 0;
  const io::Stopwatch all;
  for (int rank = 0; rank < ranks; ++rank) {
    const io::Stopwatch compiling;
    const Listing listing = lower(net.graph, plan, rank, ranks, {.outputs = {net.loss, optimizer.norm}});
    compiled += compiling.seconds();
    estimator.add(listing);
  }
  const simulation::Estimate found = estimator.run();
  const double estimated = all.seconds() - compiled;

  double flops = 0, peak = 0, bubble = 0, sent = 0, most_sent = 0;
  std::int64_t most_memory = 0, too_full = -1;
  const DType dtype = s.model.dtype == "bf16" ? DType::bf16 : s.model.dtype == "f16" ? DType::f16 : f32;
  for (int rank = 0; rank < ranks; ++rank) {
    const simulation::Estimate::Rank& r = found.ranks[rank];
    const simulation::Device& device = cluster.device(seats[rank]);
    const auto rate = device.flops.find(dtype);
    flops += r.flops;
    peak += (rate == device.flops.end() ? device.flops.at(f32) : rate->second) * seats[rank].workers;
    bubble += r.bubble / ranks;
    sent += r.sent_bytes;
    most_sent = std::max(most_sent, r.sent_bytes);
    most_memory = std::max(most_memory, r.peak_bytes);
    if (too_full < 0 && r.peak_bytes > cluster.memory(seats[rank])) too_full = rank;
  }
  const auto tokens = static_cast<double>(s.batch * s.model.context);
  if (s.json) {
    fmt::print("{}\n", nlohmann::ordered_json{{"ranks", ranks},
                                              {"parameters", net.parameters()},
                                              {"step_s", found.seconds},
                                              {"tokens_per_s", tokens / found.seconds},
                                              {"share_of_peak", flops / found.seconds / peak},
                                              {"bubble", bubble},
                                              {"sent_bytes", sent},
                                              {"most_sent_bytes", most_sent},
                                              {"most_memory_bytes", most_memory},
                                              {"fits", too_full < 0},
                                              {"joules", found.joules},
                                              {"tasks", found.tasks},
                                              {"messages", found.messages},
                                              {"compile_s", compiled},
                                              {"estimate_s", estimated}}
                           .dump());
    return 0;
  }
  fmt::print("parameters {:.3f} M, {:.0f} tokens per step, {:.2f} Mflop per token\n",
             static_cast<double>(net.parameters()) * 1e-6, tokens, flops / tokens * 1e-6);
  fmt::print("{}: {} ranks on {} nodes\n", cluster.name, ranks, seats.back().node + 1);
  fmt::print("step       {:.4g} s, {:.0f} tokens/s, {:.1f} % of peak\n", found.seconds,
             tokens / found.seconds, 100 * flops / found.seconds / peak);
  fmt::print("idle       {:.1f} % of the devices' time\n", 100 * bubble);
  fmt::print("sent       {:.2f} GB per step, by a rank at most {:.3f} GB\n", sent * 1e-9, most_sent * 1e-9);
  fmt::print("memory     {:.2f} GB of tiles on a rank at most\n", static_cast<double>(most_memory) * 1e-9);
  fmt::print("energy     {:.3g} kJ per step, {:.3g} J per 1,000 tokens\n", found.joules * 1e-3,
             1000 * found.joules / tokens);
  fmt::print("from {} tasks and {} messages per step; compiled in {:.1f} s, estimated in {:.2f} s\n",
             found.tasks, found.messages, compiled, estimated);
  if (too_full >= 0)
    fmt::print(stderr,
               "gpt estimate: rank {} needs {:.1f} GB, but has {:.1f}: it would not fit; try --recompute, "
               "smaller micro-batches or more ranks\n",
               too_full, static_cast<double>(found.ranks[too_full].peak_bytes) * 1e-9,
               static_cast<double>(cluster.memory(seats[too_full])) * 1e-9);
  return 0;
}

}  // namespace tegula::apps
