// gpt estimate: what a training step would take on a cluster that nobody here needs to have.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "apps/estimation.hpp"
#include "apps/gpt/commands.hpp"
#include "apps/gpt/model.hpp"
#include "framework/io/plan_file.hpp"
#include "framework/plan/plans.hpp"

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

  Estimation estimation(simulation::read_cluster(s.cluster), static_cast<int>(s.ranks),
                        static_cast<int>(s.per_node));
  LanguageModel net(s.model, s.batch, s.vocabulary, 1);
  layers::AdamWOptions adam{.weight_decay = 0.1};
  adam.decays = [&](const Tensor& parameter) { return net.transformer->decays(parameter); };
  adam.clip = 1;
  const auto optimizer = layers::adamw(net.graph, net.loss, net.transformer->parameters(), adam);
  estimation.run(net.graph, s.plan.empty() ? s.mixed(net.graph, net.batch) : io::read_plan(s.plan, net.graph),
                 {.outputs = {net.loss, optimizer.norm}});

  const auto tokens = static_cast<double>(s.batch * s.model.context);
  const DType dtype = s.model.transformer().dtype;
  if (s.json) {
    nlohmann::ordered_json found = estimation.json(tokens, dtype);
    found["parameters"] = net.parameters();
    fmt::print("{}\n", found.dump());
    return 0;
  }
  fmt::print("parameters {:.3f} M, {:.0f} tokens per step\n{}", static_cast<double>(net.parameters()) * 1e-6,
             tokens, estimation.text(tokens, "tokens", dtype));
  if (const std::string warning = estimation.warning(); !warning.empty())
    fmt::print(stderr, "gpt estimate: {}", warning);
  return 0;
}

}  // namespace tegula::apps
