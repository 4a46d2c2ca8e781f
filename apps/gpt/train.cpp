// gpt train: trains a language model on prepared text, saves and resumes.
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <csignal>
#include <deque>

#include "apps/gpt/commands.hpp"
#include "apps/gpt/model.hpp"
#include "apps/gpt/windows.hpp"
#include "apps/training.hpp"
#include "framework/io/event_file.hpp"
#include "framework/io/tokenizer.hpp"

namespace tegula::apps {

namespace {

struct TrainOptions : PlacementOptions {
  std::string toml, data = "data/bible", out, schedule = "cosine", resume = "none";
  std::int64_t steps = 2000, batch = 16, seed = 1, accumulate = 1, warmup = 100, cooldown = 0,
               validate_every = 250, validation_batches = 20, save_every = 500, keep = 3;
  double lr = 1e-3, lr_floor = 1e-4, beta1 = 0.9, beta2 = 0.95, weight_decay = 0.1, clip = 1,
         loss_scale = 65536;
  bool dry_run = false;
  ModelOptions model;

  void add_to(io::Options& options) {
    options.add("data", &data, "folder that `gpt prepare` has made")->type_name("DIR");
    options.add("steps", &steps, "optimizer steps in all")->check(io::at_least(0));
    options.add("batch", &batch, "sequences per step")->check(io::at_least(1));
    options
        .add("accumulate", &accumulate,
             "micro-batches that each rank's share of a step is worked off in, to save memory")
        ->check(io::at_least(1));
    options.add("seed", &seed, "of initial weights, dropout and the order of the text")
        ->check(io::at_least(0));
    options.add("lr", &lr, "peak learning rate")->check(CLI::NonNegativeNumber);
    options.add("lr-floor", &lr_floor, "learning rate at the end")->check(CLI::NonNegativeNumber);
    options.add("schedule", &schedule, "of the learning rate behind the warm-up")
        ->check(CLI::IsMember({"constant", "linear", "cosine", "stable"}));
    options.add("warmup", &warmup, "steps over which the rate rises")->check(io::at_least(0));
    options.add("cooldown", &cooldown, "last steps, over which it falls (stable)")->check(io::at_least(0));
    options.add("beta1", &beta1, "of AdamW")->check(CLI::Range(0.0, 0.9999999));
    options.add("beta2", &beta2, "of AdamW")->check(CLI::Range(0.0, 0.9999999));
    options.add("weight-decay", &weight_decay, "of matrices; not of biases and norms");
    options.add("clip", &clip, "largest norm of the gradient (0: any)")->check(CLI::NonNegativeNumber);
    options.add("loss-scale", &loss_scale, "to begin with, where --dtype is f16; adapts itself")
        ->check(CLI::Range(1.0, 1e30));
    options.add("validate-every", &validate_every, "steps (0: only at the end)")->check(io::at_least(0));
    options.add("validation-batches", &validation_batches, "of the validation text")->check(io::at_least(1));
    options.add("save-every", &save_every, "steps between checkpoints (0: only at the end)")
        ->check(io::at_least(0));
    options.add("keep", &keep, "newest checkpoints to keep (0: all)")->check(io::at_least(0));
    options.add("out", &out, "folder for the results (default: runs/gpt-DATE)")->type_name("DIR");
    options.add("resume", &resume,
                "none, auto (the newest checkpoint in --out, if any) or the folder of a run or checkpoint");
    options.add("dry-run", &dry_run, "print parameters, flops, memory and bytes as predicted, and stop");
    PlacementOptions::add_to(options);
    model.add_to(options);
  }
};

// Preset first, so that it gives the defaults of the other options.
std::optional<int> parse(TrainOptions& s, int argc, char** argv) {
  {
    TrainOptions first;
    io::Options options("gpt train", "", /*quiet=*/true);
    first.add_to(options);
    if (!options.parse(argc, argv)) s.model.use(first.model.preset);
  }
  io::Options options("gpt train", "Trains a language model on text that `gpt prepare` has prepared.",
                      launched_rank() != 0);
  s.add_to(options);
  auto code = options.parse(argc, argv);
  s.toml = options.toml();
  return code;
}

Tokens open_prepared(const std::string& data, const char* name) {
  const std::filesystem::path file = std::filesystem::path(data) / name;
  if (!std::filesystem::exists(file))
    throw std::runtime_error(fmt::format(
        "{}: no such file; make it with `gpt prepare --text FILE --out {}`, or give another --data",
        file.string(), data));
  return open_tokens(file);
}

class Trainer {
 public:
  Trainer(TrainOptions& options, Runtime& runtime);
  int run();

 private:
  struct Pending {
    std::int64_t step;
    double rate;
    Result result;
  };
  std::string describe();
  void report(std::size_t keep);
  bool all_finite();
  void save(std::int64_t step);
  std::optional<double> judged_before(std::int64_t step);

  TrainOptions& s_;
  Runtime& runtime_;
  Tokens train_, validation_;
  io::Tokenizer tokenizer_;
  LanguageModel net_;
  layers::AdamWState optimizer_;
  Plan plan_;
  std::optional<Program> step_, judge_;
  io::TokenBatches batches_;
  layers::Schedule schedule_;
  std::optional<io::RunFolder> folder_;
  std::optional<io::Progress> progress_;
  std::optional<io::EventFile> events_;
  std::optional<io::CheckpointWriter> writer_;
  std::deque<Pending> pending_;
  std::string non_finite_;
  double smoothed_ = 0, flops_ = 0, peak_ = 0;
  std::int64_t saved_ = -1;
};

Trainer::Trainer(TrainOptions& options, Runtime& runtime)
    : s_(options),
      runtime_(runtime),
      train_(open_prepared(s_.data, "train.tokens")),
      validation_(open_prepared(s_.data, "validation.tokens")),
      tokenizer_(io::Tokenizer::read(s_.data)),
      net_(s_.model, s_.batch, train_->vocabulary(), static_cast<std::uint64_t>(s_.seed)),
      batches_(train_->size(), s_.model.context, s_.batch, static_cast<std::uint64_t>(s_.seed), s_.data),
      schedule_{layers::find_decay(s_.schedule), s_.lr, s_.lr_floor, s_.steps, s_.warmup, s_.cooldown} {
  if (validation_->vocabulary() != train_->vocabulary() || tokenizer_.size() != train_->vocabulary())
    throw std::runtime_error(
        fmt::format("{}: train.tokens have a vocabulary of {}, validation.tokens of {}, the tokenizer one of "
                    "{}; prepare them again",
                    s_.data, train_->vocabulary(), validation_->vocabulary(), tokenizer_.size()));
  layers::AdamWOptions adam{.beta1 = s_.beta1, .beta2 = s_.beta2, .weight_decay = s_.weight_decay};
  adam.decays = [this](const Tensor& parameter) { return net_.transformer->decays(parameter); };
  adam.clip = s_.clip;
  if (s_.model.dtype == "f16") adam.loss_scale = s_.loss_scale;
  optimizer_ = layers::adamw(net_.graph, net_.loss, net_.transformer->parameters(), adam);
  plan_ = s_.plan(net_.graph, runtime, net_.batch);
  if (const std::int64_t parts = s_.accumulate * runtime.size(); s_.accumulate > 1)
    plan_.tile(net_.batch, (s_.batch + parts - 1) / parts).micro_batches(net_.batch);
}

std::string Trainer::describe() {
  double flops = step_->listing().flops;
  runtime_.sum_over_ranks(&flops, 1);
  flops_ = flops;
  const double tokens = static_cast<double>(s_.batch * s_.model.context);
  return fmt::format(
             "parameters {:.3f} M, {:.2f} Mflop per token, {:.0f} tokens per step, {:.1f} epochs in {} "
             "steps\n",
             static_cast<double>(net_.parameters()) * 1e-6, flops / tokens * 1e-6, tokens,
             batches_.epochs(s_.steps), s_.steps) +
         plan_.describe(net_.graph) + step_->report();
}

void Trainer::report(std::size_t keep) {
  if (runtime_.rank() != 0) pending_.clear();
  for (; !pending_.empty() && (pending_.size() > keep || pending_.front().result.ready());
       pending_.pop_front()) {
    const auto& [step, rate, result] = pending_.front();
    auto value = [&](const Tensor& output, double otherwise) {
      return output ? result.value(output) : otherwise;
    };
    const double loss = result.value(net_.loss), norm = value(optimizer_.norm, 0),
                 loss_scale = value(optimizer_.loss_scale, 1);
    if (!std::isfinite(loss) && non_finite_.empty())
      non_finite_ = fmt::format("the loss of step {} is not finite ({})", step, loss);
    // One that a smaller loss scale may cure is no failure: the step has changed nothing.
    if (!std::isfinite(norm) && loss_scale <= 1 && non_finite_.empty())
      non_finite_ = fmt::format("the gradient norm of step {} is not finite ({})", step, norm);
    smoothed_ = smoothed_ == 0 ? loss : smoothed_ + 0.05 * (loss - smoothed_);
    const std::int64_t tokens = s_.batch * s_.model.context;
    const double speed = progress_->items_per_s(),
                 share = speed * flops_ / static_cast<double>(tokens) / peak_;
    progress_->step(step, tokens,
                    fmt::format("loss {:.4f} (smoothed {:.4f})  norm {:.3f}  lr {:.2e}  {:.0f} % of peak",
                                loss, smoothed_, norm, rate, 100 * share));
    std::vector<io::Scalar> curves{
        {"loss", loss}, {"lr", rate}, {"gradient_norm", norm}, {"tokens_per_s", speed}};
    if (optimizer_.loss_scale) curves.push_back({"loss_scale", loss_scale});
    nlohmann::ordered_json line{{"step", step}, {"loss_hex", io::hex_float(loss)}};
    for (const io::Scalar& curve : curves) line[std::string(curve.tag)] = curve.value;
    folder_->record(line);
    if (events_) events_->add(step, curves);
  }
}

// Whether all losses reported so far are. Collective.
bool Trainer::all_finite() {
  double failed = non_finite_.empty() ? 0 : 1;
  runtime_.sum_over_ranks(&failed, 1);
  return failed == 0;
}

void Trainer::save(std::int64_t step) {
  if (saved_ == step) return;
  saved_ = step;
  writer_->save(step, {{"model", s_.model.json()},
                       {"vocabulary", train_->vocabulary()},
                       {"seed", s_.seed},
                       {"data", s_.data},
                       {"batch", s_.batch},
                       {"config", s_.toml}});
}

// The validation loss of the step if the run that goes on ended with it: a complete run is not judged again.
std::optional<double> Trainer::judged_before(std::int64_t step) {
  std::array<double, 2> known = {0, 0};
  const auto line = nlohmann::json::parse(folder_->last_kept(), nullptr, /*allow_exceptions=*/false);
  if (line.is_object() && line["step"] == step && line.contains("validation_loss") &&
      line["validation_loss"].is_number())
    known = {1, line["validation_loss"]};
  runtime_.sum_over_ranks(known.data(), known.size());
  return known[0] > 0 ? std::optional(known[1]) : std::nullopt;
}

int Trainer::run() {
  const bool first = runtime_.rank() == 0;
  CompileOptions options{.outputs = {net_.loss}};
  for (const Tensor& output : {optimizer_.norm, optimizer_.loss_scale})
    if (output) options.outputs.push_back(output);
  step_.emplace(compile(net_.graph, plan_, runtime_, options));
  const std::string description = describe();
  if (s_.dry_run || s_.print_plan) {
    if (first) fmt::print("{}\n", description);
    if (s_.dry_run) return 0;
  }
  if (s_.estimated(*step_, net_.graph, plan_, options, static_cast<double>(s_.batch * s_.model.context),
                   "tokens"))
    return 0;
  if ((validation_->size() - 1) / s_.model.context < 1)
    throw std::runtime_error(fmt::format("{}: the validation text has {} tokens, fewer than a context of {}",
                                         s_.data, validation_->size(), s_.model.context));
  judge_.emplace(step_->sibling({.outputs = {net_.judged_loss}, .updates = false}));

  const std::vector<io::CheckpointTensor> states = net_.states();
  std::int64_t done = 0;
  std::optional<std::filesystem::path> from;
  const std::string out = s_.out.empty() ? shared_run_folder(runtime_, "gpt") : s_.out;
  const std::filesystem::path root = std::filesystem::path(out) / "checkpoints";
  if (s_.resume == "auto")
    from = io::newest_checkpoint(root);
  else if (s_.resume != "none")
    from = find_checkpoint(s_.resume);
  // A second run would remove the first one's checkpoints, or be resumed from them.
  if (s_.resume == "none" && io::newest_checkpoint(root))
    throw std::runtime_error(out +
                             ": holds checkpoints of an earlier run; go on with it by --resume auto, or give "
                             "another --out");
  if (from) {
    done = io::load(*step_, states, *from).step;
    saved_ = done;
  }
  folder_.emplace(out, "gpt", s_.toml, first, from ? done : -1);
  const std::map<std::string, std::string> texts{
      {"config.json", s_.model.hugging_face(train_->vocabulary())}};
  writer_.emplace(*step_, states, root, static_cast<int>(s_.keep), texts);
  progress_.emplace(s_.steps, !first, "tokens");
  progress_->note(s_.toml);
  progress_->note(description);
  if (first) {
    tokenizer_.write(folder_->path());
    events_.emplace(folder_->path());
    peak_ = Runtime::simulated() ? 0 : gemm_peak();
  }
  double workers = runtime_.cpu_workers() + runtime_.gpus();
  runtime_.sum_over_ranks(&workers, 1);
  peak_ *= workers;
  note_in_trace(runtime_, net_.graph, plan_, *step_, *folder_,
                static_cast<double>(s_.batch * s_.model.context), "tokens", s_.model.transformer().dtype);
  if (from) progress_->note(fmt::format("resumed from {} at step {}", from->string(), done));

  auto judge = [&] {
    report(0);
    const double loss = mean_loss(*judge_, net_, validation_, s_.validation_batches, runtime_);
    progress_->note(
        fmt::format("step {}: validation loss {:.4f}; memory {:.0f} MB, of which tiles {:.0f} MB at most",
                    done, loss, resident_mb(), static_cast<double>(step_->peak_bytes()) * 1e-6));
    folder_->record(
        {{"step", done}, {"validation_loss", loss}, {"validation_loss_hex", io::hex_float(loss)}});
    if (events_) events_->add(done, {{"validation_loss", loss}});
    progress_->resume();
    return loss;
  };
  bool running = true;
  double last = NAN;
  std::int64_t judged = -1;
  if (const std::optional<double> known = judged_before(done)) last = *known, judged = done;
  while (running && done < s_.steps) {
    const double rate = schedule_.rate(done);
    bind_windows(*step_, net_, train_, batches_.starts(done));
    pending_.push_back({++done, rate, step_->run({{"learning_rate", rate}})});
    report(16);
    if (Runtime::simulated()) continue;
    if (s_.validate_every > 0 && done % s_.validate_every == 0) last = judge(), judged = done;
    if (s_.save_every > 0 && done % s_.save_every == 0) {
      report(0);  // who resumes from the checkpoint finds the metrics of all its steps
      if (!all_finite()) break;
      save(done);
    }
    running = runtime_.agree(non_finite_.empty() ? 0 : Runtime::failure_code) == 0;
  }
  report(0);
  if (Runtime::simulated()) return 0;  // there is nothing to judge nor to save
  if (!all_finite()) {
    writer_->wait();  // a checkpoint from before, maybe
    const auto op = runtime_.first_non_finite();
    throw std::runtime_error(
        fmt::format("{}; the first op with a non-finite output was {}; a lower --lr may help", non_finite_,
                    op ? op->task : "not found"));
  }
  if (running && judged != done) last = judge();
  save(done);
  writer_->wait();
  if (running) {
    folder_->write("result.json",
                   {{"steps", done}, {"validation_loss", last}, {"parameters", net_.parameters()}});
    progress_->note(fmt::format("validation loss {:.4f}, results in {}", last, folder_->path().string()));
    return 0;
  }
  progress_->note(
      fmt::format("stopped by a signal at step {}; continue with --resume auto --out {}", done, out));
  return runtime_.signal_received() == SIGINT ? 128 + SIGINT : to_be_continued;
}

}  // namespace

int train(int argc, char** argv) {
  TrainOptions options;
  if (auto code = parse(options, argc, argv)) return *code;
  Runtime runtime(argc, argv, options.runtime());
  return Trainer(options, runtime).run();
}

}  // namespace tegula::apps
