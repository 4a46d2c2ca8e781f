// What training programs share: their common options, programs for batches of any size, losses that arrive behind the
// steps.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <ctime>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <tegula/tegula.hpp>
#include <utility>
#include <vector>

#include "apps/estimation.hpp"
#include "framework/io/plan_file.hpp"
#include "framework/io/run_folder.hpp"
#include "kernels/blas.hpp"

namespace tegula::apps {

// Where a program runs and in which pieces.
struct PlacementOptions {
  std::int64_t workers = -1, silence_limit = 20;
  std::string scheduler, plan_file, trace;
  io::NamedNumbers tile, mesh;
  bool print_plan = false;
  std::string estimate;

  void add_to(io::Options& options) {
    options.add("plan", &plan_file, "TOML file with tiles, mesh, shards, stages and schedule: docs/plans.md")
        ->type_name("FILE");
    options.add("tile", &tile,
                "tile size of an axis, such as batch=64; other axes stay whole (default: chosen for speed)");
    options.add("mesh", &mesh, "extent of a mesh dimension; data=N shards the batch");
    options.add("workers", &workers, "CPU workers per rank (-1: all cores)")->check(io::at_least(-1));
    options.add("scheduler", &scheduler, "StarPU's scheduling policy (default: as fits the machine)");
    options
        .add("silence-limit", &silence_limit,
             "seconds for which a rank may show no sign of life before the job ends (0: for ever)")
        ->check(io::at_least(0));
    options.add("trace", &trace, "record what workers and messages do into this folder: docs/traces.md")
        ->type_name("DIR");
    options.add("print-plan", &print_plan, "print tiles, tasks, bytes and memory before training");
    options
        .add("estimate", &estimate,
             "print what a step takes by docs/simulation.md on the machines that this file describes, and "
             "stop")
        ->type_name("FILE");
  }

  RuntimeOptions runtime() const {
    return {.cpu_workers = static_cast<int>(workers),
            .scheduler = scheduler,
            .check_finite = true,
            .silence_limit_s = static_cast<int>(silence_limit),
            .trace = trace};
  }

  // Cuts and places the graph as --plan, --tile and --mesh say. Without --plan and --tile, by Plan::automatic; with --tile, axes that are not
  // named stay whole, so that the same flags give the same bits on any number of ranks and workers.
  Plan plan(Graph& graph, const Runtime& runtime, const Axis& batch_axis) const {
    Plan plan;
    if (!plan_file.empty()) {
      if (!mesh.empty()) throw std::invalid_argument("--mesh stands in the file that --plan gives");
      plan = io::read_plan(plan_file, graph);
    } else if (tile.empty())
      plan = Plan::automatic(graph, runtime);
    else
      plan.mesh({{"data", runtime.size()}}).shard(batch_axis, "data");
    if (!mesh.empty()) {
      plan.mesh({mesh.begin(), mesh.end()});
      for (const auto& [name, size] : mesh)
        if (name == "data") plan.shard(batch_axis, name);
    }
    for (const auto& [name, size] : tile) {
      auto axis = graph.find_axis(name);
      if (!axis)
        throw std::invalid_argument(fmt::format("--tile {}={}: no such axis; {}", name, size, axes(graph)));
      plan.tile(*axis, size);
    }
    return plan;
  }

  // What --estimate asks for, with the ranks and workers that there are. Returns whether it was asked for.
  bool estimated(const Program& program, Graph& graph, const Plan& plan, const CompileOptions& options,
                 double items, const char* kind) const {
    if (estimate.empty()) return false;
    const Runtime& runtime = program.runtime();
    Estimation estimation(simulation::read_cluster(estimate), runtime.size(), runtime.size());
    for (auto& seat : estimation.seats) seat.workers = std::min(seat.workers, runtime.cpu_workers());
    estimation.run(graph, plan, options);
    if (runtime.rank() == 0) fmt::print("{}", estimation.text(items, kind, DType::f32));
    return true;
  }

 private:
  static std::string axes(Graph& graph) {
    std::string text = "the axes are";
    for (const Axis& axis : graph.axes()) text += " " + axis.name();
    return text;
  }
};

// Options that every program has which trains on a set of samples.
struct TrainingOptions : PlacementOptions {
  std::int64_t epochs = 8, steps = -1, batch = 256, seed = 1;
  double lr = 0.05;
  std::string schedule = "cosine", out;

  void add_to(io::Options& options) {
    options.add("epochs", &epochs, "passes over the training set")->check(io::at_least(0));
    options.add("steps", &steps, "train so many steps, whatever --epochs says (-1: do not)")
        ->check(io::at_least(-1));
    options.add("batch", &batch, "samples per step")->check(io::at_least(1));
    options.add("seed", &seed, "of initial weights and of the order of samples")->check(io::at_least(0));
    options.add("lr", &lr, "learning rate to begin with");
    options.add("schedule", &schedule, "of the learning rate")->check(CLI::IsMember({"constant", "cosine"}));
    options.add("out", &out, "folder for the results (default: runs/NAME-DATE)")->type_name("DIR");
    PlacementOptions::add_to(options);
  }

  std::int64_t total_steps(std::int64_t samples) const {
    return steps >= 0 ? steps : epochs * ((samples + batch - 1) / batch);
  }

  double learning_rate(std::int64_t step, std::int64_t of) const {
    return layers::Schedule{.decay = layers::find_decay(schedule), .peak = lr, .steps = of}.rate(step);
  }
};

// Programs on one state that differ in the size of the batch, for the last batch of an epoch is smaller.
class BatchPrograms {
 public:
  // `full` was compiled with `options` for the whole of `batch`.
  BatchPrograms(Program full, Axis batch, CompileOptions options)
      : batch_(batch), options_(std::move(options)) {
    programs_.emplace(batch.extent(), std::move(full));
  }

  std::int64_t full_size() const { return batch_.extent(); }
  Program& full() { return programs_.at(full_size()); }
  Program& of(std::int64_t size) {
    auto place = programs_.find(size);
    if (place == programs_.end()) {
      options_.extents = {{batch_, size}};
      place = programs_.emplace(size, full().sibling(options_)).first;
    }
    return place->second;
  }

 private:
  Axis batch_;
  CompileOptions options_;
  std::map<std::int64_t, Program> programs_;
};

struct Step {
  std::int64_t number, epoch, samples;
};

// Steps are submitted ahead of their losses, so that no worker waits for the reader of a loss. This keeps the losses in
// flight, and reports those that have arrived to progress line and metrics.jsonl. Every rank calls it alike.
class LossQueue {
 public:
  LossQueue(Runtime& runtime, const Tensor& loss, io::Progress& progress, io::RunFolder& folder)
      : runtime_(runtime), loss_(loss), progress_(progress), folder_(folder) {}

  // Takes the result of a run just submitted. Returns whether to go on: not after a signal to any rank, nor after a loss
  // that is not finite.
  bool push(const Step& step, Result result) {
    pending_.emplace_back(step, std::move(result));
    report(max_pending);
    return runtime_.agree(non_finite_.empty() ? 0 : Runtime::failure_code) == 0;
  }

  // Collective: waits for the losses in flight. Returns, on rank 0, the mean over all samples since the last call. Throws
  // std::runtime_error on all ranks if a loss was not finite.
  double drain() {
    report(0);
    double failed = non_finite_.empty() ? 0 : 1;
    runtime_.sum_over_ranks(&failed, 1);
    if (failed > 0) {
      const auto first = runtime_.first_non_finite();
      throw std::runtime_error(
          fmt::format("{}; the first op with a non-finite output was {}; a lower --lr may help", non_finite_,
                      first ? first->task : "not found"));
    }
    return std::exchange(sum_, 0) / static_cast<double>(std::exchange(samples_, 0));
  }

 private:
  static constexpr std::size_t max_pending = 16;  // more runs than a program keeps in flight

  void report(std::size_t keep) {
    if (runtime_.rank() != 0) pending_.clear();
    for (; !pending_.empty() && (pending_.size() > keep || pending_.front().second.ready());
         pending_.pop_front()) {
      const Step& step = pending_.front().first;
      const double loss = pending_.front().second.value(loss_);
      if (!std::isfinite(loss) && non_finite_.empty())
        non_finite_ = fmt::format("the loss of step {} is not finite ({})", step.number, loss);
      sum_ += loss * static_cast<double>(step.samples);
      samples_ += step.samples;
      progress_.step(step.epoch, step.number, loss, step.samples);
      folder_.record({{"step", step.number},
                      {"epoch", step.epoch},
                      {"loss", loss},
                      {"loss_hex", io::hex_float(loss)},
                      {"images_per_s", progress_.items_per_s()}});
    }
  }

  Runtime& runtime_;
  Tensor loss_;
  io::Progress& progress_;
  io::RunFolder& folder_;
  std::deque<std::pair<Step, Result>> pending_;
  std::string non_finite_;  // the message
  double sum_ = 0;          // of the losses of all samples
  std::int64_t samples_ = 0;
};

// Collective: writes states as safetensors, on rank 0.
inline void save_states(const std::filesystem::path& path, const Runtime& runtime, const Program& program,
                        const std::vector<Tensor>& states) {
  std::deque<std::vector<float>> values;
  std::vector<io::TensorView> views;
  for (const Tensor& state : states) {
    const std::vector<double> read = program.read(state);
    std::vector<std::int64_t> shape;
    for (const Axis& axis : state.axes()) shape.push_back(axis.extent());
    values.emplace_back(read.begin(), read.end());
    views.push_back({state.name(), f32, std::move(shape), std::as_bytes(std::span(values.back()))});
  }
  if (runtime.rank() == 0) io::write_safetensors(path, views);
}

// Collective: runs/NAME-DATE, the same on all ranks.
inline std::string shared_run_folder(Runtime& runtime, const std::string& name) {
  double now = runtime.rank() == 0 ? static_cast<double>(std::time(nullptr)) : 0;
  runtime.sum_over_ranks(&now, 1);
  return "runs/" + name + "-" + io::date_and_time(static_cast<std::time_t>(now));
}

// Flop/s of the f32 matrix product on one core, the best of a few short runs.
inline double gemm_peak() {
  constexpr int n = 512;
  std::vector<float> a(n * n, 1), b(n * n, 1), c(n * n);
  double best = 0;
  for (int i = 0; i < 8; ++i) {
    const io::Stopwatch watch;
    matrix_product(false, false, n, n, n, 1.0f, a.data(), n, b.data(), n, 0.0f, c.data(), n);
    best = std::max(best, 2.0 * n * n * n / watch.seconds());
  }
  return best;
}

// Collective: what the tools that read a trace want to know of a run. The peak is that of a core, so none where a GPU works.
// A step works on so many `items`, of a kind such as images, mostly in `dtype`.
inline void note_in_trace(Runtime& runtime, Graph& graph, const Plan& plan, const Program& step,
                          const io::RunFolder& folder, double items, const char* kind, DType dtype = f32) {
  if (!runtime.traced()) return;
  runtime.note_in_trace("plan", plan.describe(graph) + step.report());
  runtime.note_in_trace("results", std::filesystem::absolute(folder.path()).string());
  runtime.note_in_trace("items_per_step", items);
  runtime.note_in_trace("items", std::string(kind));
  runtime.note_in_trace("dtype", std::string(name_of(dtype)));
  if (runtime.rank() == 0 && runtime.gpus() == 0 && !Runtime::simulated())
    runtime.note_in_trace("gemm_peak_gflops", gemm_peak() * 1e-9);
}

// Memory of this process that is not swapped out.
inline double resident_mb() {
  std::ifstream statm("/proc/self/statm");
  double pages = 0, resident = NAN;
  statm >> pages >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE)) * 1e-6;
}

// What the process should return: 128 + signal where one has ended the training early, as shells expect.
inline int exit_code(const Runtime& runtime, bool finished) {
  if (finished) return 0;
  return 128 + (runtime.signal_received() != 0 ? runtime.signal_received() : SIGINT);
}

}  // namespace tegula::apps
