// Writes, copies and checks checkpoints for checkpoint_run_test.py, which compares them between runs.
//
//     checkpoint_run save ROOT TILE          made-up states, saved as step 5
//     checkpoint_run copy FROM ROOT TILE     loads the newest of FROM, saves it as the same step
//     checkpoint_run endless ROOT            goes on from the newest, saving each step, until killed; says "saved N"
//     checkpoint_run throw ROOT              saves step 1; the last rank throws at once
//     checkpoint_run check ROOT              loads the newest, says "step N"
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#include "framework/io/checkpoint.hpp"

using namespace tegula;

namespace {

// A layer of GPT-2 in the small, with moments: packed tensors, all real dtypes, ragged tiles, a scalar.
struct Model {
  Graph graph;
  Axis embed = graph.axis("embed", 22), head = graph.axis("head", 5), dim = graph.axis("dim", 6),
       hidden = graph.axis("hidden", 41), vocabulary = graph.axis("vocabulary", 1200);
  std::vector<io::CheckpointTensor> entries;
  Tensor first;

  Model() {
    graph.seed(11);
    std::int64_t column = 0;
    for (const char* name : {"q", "k", "v"}) {
      add({.name = "attention.qkv", .shape = {22, 90}, .column_begin = column}, f32, {embed, head, dim},
          name);
      add({.name = "attention.bias", .shape = {90}, .column_begin = column}, f32, {head, dim},
          std::string(name) + ".bias");
      column += 30;
    }
    add({.name = "mlp", .shape = {22, 41}}, DType::bf16, {embed, hidden}, "mlp");
    add({.name = "embedding", .shape = {1200, 22}}, f32, {vocabulary, embed}, "embedding");
    add({.file = "optimizer", .name = "mlp.m", .shape = {22, 41}}, f64, {embed, hidden}, "mlp.m");
    add({.file = "optimizer", .name = "scale", .shape = {}}, f32, {}, "scale");
    first = entries.front().state;
  }
  void add(io::CheckpointTensor entry, DType dtype, Axes axes, const std::string& name) {
    entry.state = graph.state(name, dtype, std::move(axes), Initializer::normal(0, 1));
    entries.push_back(std::move(entry));
  }
  Program compile(Runtime& runtime, std::int64_t tile) {
    Plan plan;
    for (const Axis& axis : graph.axes()) plan.tile(axis, axis == vocabulary ? 50 * tile : tile);
    return tegula::compile(graph, plan, runtime, {.outputs = {first}});
  }
};

template <class F>
void each_value(const Tensor& state, const TileRegion& region, const void* data, F&& f) {
  std::int64_t count = 1;
  for (std::int64_t extent : region.extent) count *= extent;
  visit_dtype(state.dtype(), [&]<class T>() {
    for (std::int64_t i = 0; i < count; ++i) f(static_cast<double>(static_cast<const T*>(data)[i]));
  });
}

// All states hold the number of the step, modulo what bf16 can tell apart.
void set_all(Program& program, const Model& model, std::int64_t step) {
  for (const io::CheckpointTensor& entry : model.entries)
    program.fill(entry.state, [step, state = entry.state](const TileRegion& region, void* data) {
      std::int64_t count = 1;
      for (std::int64_t extent : region.extent) count *= extent;
      visit_dtype(state.dtype(), [&]<class T>() {
        std::fill_n(static_cast<T*>(data), count, static_cast<T>(static_cast<float>(step % 100)));
      });
    });
}

// Loads the newest checkpoint, if any, and looks whether all of it is of one step.
std::int64_t resume(Program& program, const Model& model, const std::filesystem::path& root) {
  const auto folder = io::newest_checkpoint(root);
  if (!folder) return 0;
  const io::CheckpointState state = io::load(program, model.entries, *folder);
  for (const io::CheckpointTensor& entry : model.entries)
    program.visit(entry.state,
                  [step = state.step, tensor = entry.state](const TileRegion& region, const void* data) {
                    each_value(tensor, region, data, [&](double value) {
                      if (value != static_cast<double>(step % 100))
                        throw std::runtime_error(tensor.name() + " is of another step");
                    });
                  });
  program.runtime().wait();
  if (state.contents.at("step") != state.step || state.updates != 2 * state.step)
    throw std::runtime_error("state.json is of another step");
  return state.step;
}

int run(const std::vector<std::string>& arguments, Runtime& runtime) {
  const std::string& what = arguments.at(0);
  Model model;
  if (what == "save") {
    Program program = model.compile(runtime, std::stoll(arguments.at(2)));
    program.updates(7);
    io::CheckpointWriter(program, model.entries, arguments.at(1)).save(5, {{"seed", 11}, {"rate", 0.1}});
  } else if (what == "copy") {
    Program program = model.compile(runtime, std::stoll(arguments.at(3)));
    const auto state = io::load(program, model.entries, io::newest_checkpoint(arguments.at(1)).value());
    io::CheckpointWriter(program, model.entries, arguments.at(2)).save(state.step, state.contents);
  } else if (what == "endless") {
    Program program = model.compile(runtime, 7);
    std::int64_t step = resume(program, model, arguments.at(1));
    io::CheckpointWriter writer(program, model.entries, arguments.at(1), 2);
    for (;;) {
      set_all(program, model, ++step);
      program.updates(2 * step);
      writer.save(step, {{"step", step}});
      if (runtime.rank() != 0) continue;
      std::printf("saved %lld\n", static_cast<long long>(step - 1));  // the one before is complete
      std::fflush(stdout);
    }
  } else if (what == "throw") {
    Program program = model.compile(runtime, 7);
    io::CheckpointWriter writer(program, model.entries, arguments.at(1));
    set_all(program, model, 1);
    program.updates(2);
    writer.save(1, {{"step", 1}});
    if (runtime.rank() == runtime.size() - 1) throw std::runtime_error("no more data");
    for (int step = 2;; ++step) writer.save(step, {{"step", step}});  // which the last rank does not join
  } else if (what == "check") {
    Program program = model.compile(runtime, 9);
    const std::int64_t step = resume(program, model, arguments.at(1));
    if (runtime.rank() == 0) std::printf("step %lld\n", static_cast<long long>(step));
  } else {
    throw std::invalid_argument("checkpoint_run: no command '" + what + "'");
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return tegula::run([&] {
    Runtime runtime(argc, argv, {.cpu_workers = 1, .print_table = false});
    return run({argv + 1, argv + argc}, runtime);
  });
}
