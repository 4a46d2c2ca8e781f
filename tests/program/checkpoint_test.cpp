// Checkpoints as a program meets them: what comes back, what is kept, refused and reported. Every rank runs every test case.
#include "framework/io/checkpoint.hpp"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <csignal>
#include <cstring>
#include <fstream>
#include <set>

#include "framework/io/file.hpp"
#include "framework/io/safetensors.hpp"
#include "tests/io/temporary_folder.hpp"
#include "tests/program/networks.hpp"
#include "tests/program/shared_folder.hpp"

using namespace tegula;
namespace fs = std::filesystem;
using test::SharedFolder;

namespace {

RuntimeOptions quiet() { return {.cpu_workers = 1, .print_table = false}; }

std::vector<Tensor> states_of(Graph& graph) {
  std::vector<Tensor> states;
  for (int id = 0; id < static_cast<int>(graph.tensors().size()); ++id)
    if (graph.tensor(id).info().kind == TensorInfo::Kind::state) states.push_back(graph.tensor(id));
  return states;
}

std::vector<io::CheckpointTensor> entries_of(Graph& graph) {
  std::vector<io::CheckpointTensor> entries;
  for (const Tensor& state : states_of(graph))
    entries.push_back(io::checkpoint_tensor(
        state, state.name().find(".exp_avg") == std::string::npos ? "model" : "optimizer"));
  return entries;
}

// A perceptron with AdamW under a plan with such tiles.
struct Training {
  test::Mlp network{8};
  Program program;

  Training(Runtime& runtime, std::int64_t tile) : program(make(runtime, tile)) {
    network.bind(program, 8, 1);
  }
  Program make(Runtime& runtime, std::int64_t tile) {
    layers::adamw(network.graph, network.loss, network.parameters, {.weight_decay = 0.01});
    Plan plan;
    for (const Axis& axis : network.graph.axes()) plan.tile(axis, axis == network.batch ? 2 : tile);
    plan.tile(network.label, 5).mesh({{"data", runtime.size()}}).shard(network.batch, "data");
    return compile(network.graph, plan, runtime, {.outputs = {network.loss}});
  }
  void run(int steps) {
    for (int i = 0; i < steps; ++i) program.run({{"learning_rate", 0.01}});
  }
  std::vector<std::vector<double>> values() {
    std::vector<std::vector<double>> all;
    for (const Tensor& state : states_of(network.graph)) all.push_back(program.read(state));
    return all;
  }
};

// Two axes, tiles of which the ranks have some each.
struct Small {
  Graph graph;
  Axis row = graph.axis("row", 6), column = graph.axis("column", 8), third = graph.axis("third", 4);
  Tensor w = graph.state("w", f32, {row, column}, Initializer::normal(0, 1));
  Tensor bias = graph.state("bias", f64, {column}, Initializer::normal(0, 1));
  Tensor narrow = graph.state("narrow", DType::bf16, {row, third}, Initializer::normal(0, 1));
  Tensor scalar = graph.state("scalar", f32, {}, Initializer::fill(3));

  Program compile(Runtime& runtime, std::int64_t tile = 2) {
    Plan plan;
    for (const Axis& axis : graph.axes()) plan.tile(axis, tile);
    return tegula::compile(graph, plan, runtime, {.outputs = {scalar}});
  }
};

void fill_with(Program& program, const Tensor& state, double value) {
  program.fill(state, [state, value](const TileRegion& region, void* data) {
    std::int64_t count = 1;
    for (std::int64_t extent : region.extent) count *= extent;
    visit_dtype(state.dtype(),
                [&]<class T>() { std::fill_n(static_cast<T*>(data), count, static_cast<T>(value)); });
  });
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

std::string read(const fs::path& path) { return contents(path); }

}  // namespace

TEST_CASE("tiles are shown and filled in the order of the runs") {
  Runtime runtime(0, nullptr, quiet());
  Small small;
  Program program = small.compile(runtime);
  double seen = 0;
  std::int64_t shown = 0;
  for (double value : {1.0, 2.0, 3.0}) {
    fill_with(program, small.w, value);
    // One worker per rank: no two tasks at once.
    shown += program.visit(small.w, [&seen, value](const TileRegion& region, const void* data) {
      for (std::int64_t i = 0; i < region.extent[0] * region.extent[1]; ++i)
        seen += static_cast<const float*>(data)[i] == static_cast<float>(value) ? 1 : 1e6;
    });
  }
  runtime.wait();
  double sums[] = {seen, static_cast<double>(shown)};
  runtime.sum_over_ranks(sums, 2);
  CHECK(sums[0] == 3 * 6 * 8);
  CHECK(sums[1] == 3 * 3 * 4);
  CHECK(contains(message_of([&] { program.visit(small.graph.input("x", f32, {small.row}), nullptr); }),
                 "is not a state of the graph"));
  CHECK(message_of([&] { program.fill({}, nullptr); }) == "[fill] no tensor is given; a state is needed");
  CHECK(message_of([&] { program.updates(-1); }) == "[updates] a number of runs is not negative, got -1");
}

TEST_CASE("a resumed run goes on with the same bits, under the same or another plan") {
  Runtime runtime(0, nullptr, quiet());
  const SharedFolder folder(runtime);
  Training run(runtime, 4);
  run.run(2);
  const auto at_two = run.values();
  {
    io::CheckpointWriter writer(run.program, entries_of(run.network.graph), folder / "run");
    writer.save(2, {{"epoch", 1}, {"seed", 7}});
    run.run(3);  // these must not be in the checkpoint
  }
  const auto at_five = run.values();
  runtime.barrier();  // behind rank 0's upkeep
  CHECK(io::newest_checkpoint(folder / "run") == folder / "run" / "step-00000002");
  CHECK(names_in(folder / "run") == std::set<std::string>{"latest", "step-00000002"});
  CHECK(names_in(folder / "run" / "step-00000002") ==
        std::set<std::string>{"model.safetensors", "optimizer.safetensors", "state.json"});

  for (std::int64_t tile : {4, 3, 100}) {
    Training other(runtime, tile);
    const io::CheckpointState state =
        io::load(other.program, entries_of(other.network.graph), folder / "run" / "step-00000002");
    CHECK(state.step == 2);
    CHECK(state.contents["seed"] == 7);
    CHECK(other.program.updates() == 2);
    CHECK(other.values() == at_two);
    other.run(3);
    if (tile == 4) CHECK(other.values() == at_five);  // AdamW has the number of the step in it
  }
  // The parameters alone, by the reader of weights and by load().
  Training fresh(runtime, 4);
  std::vector<io::CheckpointTensor> model = entries_of(fresh.network.graph);
  std::erase_if(model, [](const io::CheckpointTensor& entry) { return entry.file != "model"; });
  CHECK(io::load_weights(fresh.program, model, folder / "run" / "step-00000002").empty());
  CHECK(fresh.program.updates() == 0);
  CHECK(fresh.program.read(fresh.network.parameters[0]) == at_two[0]);
  io::load(fresh.program, model, folder / "run" / "step-00000002");
  CHECK(fresh.program.updates() == 2);
}

TEST_CASE("states share a tensor of the file side by side") {
  Runtime runtime(0, nullptr, quiet());
  const SharedFolder folder(runtime);
  Graph g;
  Axis in = g.axis("in", 5), head = g.axis("head", 3), dim = g.axis("dim", 4), wide = g.axis("wide", 6);
  Tensor q = g.state("q", f32, {in, head, dim}, Initializer::normal(0, 1));
  Tensor k = g.state("k", f32, {in, head, dim}, Initializer::normal(0, 1));
  Tensor v = g.state("v", f32, {in, wide}, Initializer::normal(0, 1));
  Tensor b = g.state("b", f32, {head, dim}, Initializer::normal(0, 1));
  Tensor c = g.state("c", f32, {wide}, Initializer::normal(0, 1));
  const std::vector<std::int64_t> packed{5, 30}, packed_bias{18};
  std::vector<io::CheckpointTensor> entries{
      {.state = k, .name = "qkv", .shape = packed, .column_begin = 12},
      {.state = q, .name = "qkv", .shape = packed},
      {.state = v, .name = "qkv", .shape = packed, .column_begin = 24},
      {.state = b, .name = "bias", .shape = packed_bias},
      {.state = c, .name = "bias", .shape = packed_bias, .column_begin = 12}};
  Program program =
      compile(g, Plan().tile(in, 2).tile(head, 2).tile(dim, 3).tile(wide, 4), runtime, {.outputs = {c}});
  {
    io::CheckpointWriter writer(program, entries, folder.path());
    writer.save(0, {});
  }
  const auto file = io::Safetensors::read(folder / "step-00000000" / "model.safetensors");
  const auto* values = reinterpret_cast<const float*>(file.at("qkv").bytes.data());
  const std::vector<double> of_q = program.read(q), of_k = program.read(k), of_v = program.read(v);
  if (runtime.rank() == 0)
    for (int row = 0; row < 5; ++row) {
      for (int i = 0; i < 12; ++i) {
        CHECK(values[row * 30 + i] == of_q[row * 12 + i]);
        CHECK(values[row * 30 + 12 + i] == of_k[row * 12 + i]);
      }
      for (int i = 0; i < 6; ++i) CHECK(values[row * 30 + 24 + i] == of_v[row * 6 + i]);
    }
  Program other = compile(g, Plan().tile(in, 3).tile(head, 1).tile(wide, 5), runtime, {.outputs = {c}});
  for (const Tensor& state : {q, k, v, b, c}) fill_with(other, state, 0);
  io::load(other, entries, folder / "step-00000000");
  for (const Tensor& state : {q, k, v, b, c}) CHECK(other.read(state) == program.read(state));

  auto refusal = [&] { return message_of([&] { io::CheckpointWriter(program, entries, folder.path()); }); };
  entries[0].column_begin = 11;
  CHECK(contains(refusal(), "[checkpoint] 'qkv' of model.safetensors has a hole or an overlap at column 11"));
  entries[0].column_begin = 19;
  CHECK(contains(refusal(), "which another") == false);
  CHECK(contains(refusal(), "would be columns 19 to 31"));
  entries[0].column_begin = 12;
  entries[2].shape = {5, 31};
  CHECK(contains(refusal(), "has shape (5, 30) for one state and (5, 31) for another"));
  entries.erase(entries.begin() + 2);
  CHECK(contains(refusal(), "has 30 columns, but its states end at 24"));
  entries[1].shape = entries[0].shape = {7, 30};
  CHECK(contains(refusal(), "has 7 rows, which do not divide the 60 elements of k"));
  entries = {io::checkpoint_tensor(q), io::checkpoint_tensor(q)};
  CHECK(contains(refusal(), "which another entry holds, too"));
  entries = {{.state = q, .name = "a", .shape = {60}}, {.state = v, .name = "", .shape = {30}}};
  CHECK(contains(refusal(), "needs another name"));
  entries = {{.state = q, .file = "../model", .name = "a", .shape = {60}}};
  CHECK(contains(refusal(), "needs a file name without folders"));
}

TEST_CASE("the newest are kept, a step saved again is replaced, and what killed runs left is cleared") {
  Runtime runtime(0, nullptr, quiet());
  const SharedFolder folder(runtime);
  Small small;
  Program program = small.compile(runtime);
  const auto entries = entries_of(small.graph);
  folder.once([&] {
    for (const char* name : {"step-00000003.partial", "step-00000001.old", "mine.partial", "step-00000009"})
      fs::create_directories(folder / name / "x");
    io::write_file(folder / "latest", "step-00000077\n");
    io::write_file(folder / "latest.tmp123", "half");
  });
  CHECK(!io::newest_checkpoint(folder.path()));
  CHECK(!io::newest_checkpoint(folder / "nowhere"));
  {
    io::CheckpointWriter writer(program, entries, folder.path(), 2, {{"config.json", "of others\n"}});
    CHECK(names_in(folder.path()) == std::set<std::string>{"latest", "mine.partial", "step-00000009"});
    runtime.barrier();
    for (int step : {10, 20, 30}) {
      fill_with(program, small.w, step);
      writer.save(step, {{"of", step}});
    }
    writer.wait();
    runtime.barrier();
    CHECK(read(folder / "latest") == "step-00000030\n");
    CHECK(names_in(folder / "step-00000030") ==
          std::set<std::string>{"config.json", "model.safetensors", "state.json"});
    CHECK(read(folder / "step-00000030/config.json") == "of others\n");
    CHECK(names_in(folder.path()) ==
          std::set<std::string>{"latest", "mine.partial", "step-00000009", "step-00000020", "step-00000030"});
    runtime.barrier();
    // Back at 20, those beyond are of an abandoned run.
    fill_with(program, small.w, 21);
    writer.save(20, {{"of", 21}});
    fill_with(program, small.w, 25);
    writer.save(25, {});
    writer.wait();
  }
  runtime.barrier();
  CHECK(names_in(folder.path()) ==
        std::set<std::string>{"latest", "mine.partial", "step-00000009", "step-00000020", "step-00000025"});
  CHECK(io::load(program, entries, folder / "step-00000020").contents["of"] == 21);
  const std::vector<double> w = program.read(small.w);
  if (runtime.rank() == 0) CHECK(std::ranges::count(w, 21.0) == 48);
  // Without what `latest` names, the newest that is complete.
  folder.once([&] { fs::remove_all(folder / "step-00000025"); });
  CHECK(io::newest_checkpoint(folder.path()) == folder / "step-00000020");
  CHECK(
      contains(message_of([&] { io::CheckpointWriter(program, entries, folder.path(), -1); }), "keep is -1"));
  CHECK(contains(message_of([&] { io::CheckpointWriter(program, entries, "/dev/null/x"); }),
                 "/dev/null/x: cannot create the folder: Not a directory"));
}

TEST_CASE("a checkpoint that does not fit, or is damaged, is refused on all ranks with the state as it was") {
  Runtime runtime(0, nullptr, quiet());
  const SharedFolder folder(runtime);
  Small small;
  Program program = small.compile(runtime);
  const auto entries = entries_of(small.graph);
  io::CheckpointWriter writer(program, entries, folder / "a");
  writer.save(1, {});
  writer.wait();
  const fs::path good = folder / "a" / "step-00000001", bad = folder / "bad";
  const std::vector<double> before = program.read(small.w);

  // Loads a copy of the checkpoint, one file of which `damage` has changed.
  auto refusal = [&](const std::string& file, const std::function<void(std::string&)>& damage,
                     std::vector<io::CheckpointTensor> wanted = {}) {
    folder.once([&] {
      fs::remove_all(bad);
      fs::copy(good, bad);
      std::string bytes = read(bad / file);
      damage(bytes);
      std::ofstream(bad / file, std::ios::binary | std::ios::trunc) << bytes;
    });
    std::string message = message_of([&] { io::load(program, wanted.empty() ? entries : wanted, bad); });
    CHECK(program.read(small.w) == before);
    return message;
  };
  auto replace = [](const std::string& from, const std::string& to) {
    return [=](std::string& text) { text.replace(text.find(from), from.size(), to); };
  };
  const std::string model = "model.safetensors", state = "state.json";
  CHECK(refusal(model, [](std::string&) {}).empty());
  CHECK(contains(
      refusal(model, [](std::string& b) { b.back() ^= 1; }),
      "model.safetensors: the checksum of 'narrow' is not the one in state.json: the data are damaged"));
  CHECK(contains(refusal(model, [](std::string& b) { b[b.size() - 150] ^= 64; }), "the checksum of 'w'"));
  CHECK(contains(refusal(model, [](std::string& b) { b.pop_back(); }),
                 "model.safetensors: not valid safetensors"));
  CHECK(contains(refusal(model, [](std::string& b) { b += '\0'; }), "data that belong to no tensor"));
  CHECK(contains(refusal(model, [](std::string& b) { b.resize(20); }), "a header of"));
  CHECK(contains(refusal(model, [](std::string& b) { b[6] = 1; }), "a header of"));
  CHECK(contains(refusal(model, [](std::string& b) { b.clear(); }), "shorter than the 8 bytes"));
  CHECK(
      contains(refusal(model, replace("[6,8]", "[8,6]")), "'w' has shape (8, 6), the program needs (6, 8)"));
  CHECK(contains(refusal(model, replace("\"scalar\"", "\"scalaR\"")), "holds no tensor 'scalar'"));
  CHECK(
      contains(refusal(model, [](std::string&) {}, {entries[0]}), "holds 'bias', 'narrow', 'scalar', which"));
  CHECK(contains(refusal(state, [](std::string& b) { b.resize(30); }),
                 "state.json: not the state of a checkpoint"));
  CHECK(contains(refusal(state, replace("\"version\": 1", "\"version\": 2")),
                 "state.json: written by a newer Tegula"));
  CHECK(contains(refusal(state, replace("\"w\"", "\"v\"")), "state.json: has no checksum of 'w' in"));
  CHECK(contains(message_of([&] { io::load(program, entries, folder / "none"); }), "state.json: missing"));
  folder.once([&] { fs::remove(bad / model); });
  CHECK(contains(message_of([&] { io::load(program, entries, bad); }),
                 "cannot read: No such file or directory"));
  // One rank alone that cannot read.
  const fs::path seen = runtime.rank() == runtime.size() - 1 ? folder / "none" : good;
  const std::string message = message_of([&] { io::load(program, entries, seen); });
  CHECK(contains(message, "none/state.json: missing"));
  if (runtime.rank() == 0 && runtime.size() > 1)
    CHECK(message.starts_with("on rank " + std::to_string(runtime.size() - 1) + ": "));
}

TEST_CASE("weights of others: one file or several, other dtypes where allowed, names left over") {
  Runtime runtime(0, nullptr, quiet());
  const SharedFolder folder(runtime);
  Small small;
  Program program = small.compile(runtime);
  const std::vector<io::CheckpointTensor> entries{io::checkpoint_tensor(small.w, "anything"),
                                                  io::checkpoint_tensor(small.narrow)};
  std::vector<float> wide = test::made_up(24, 1);
  std::vector<bf16> narrow;
  for (int i = 0; i < 48; ++i) narrow.emplace_back(static_cast<float>(i) / 7);
  const std::vector<std::uint8_t> mask(3);
  folder.once([&] {
    const std::vector<io::TensorView> first{{"w", DType::bf16, {6, 8}, std::as_bytes(std::span(narrow))},
                                            {"mask", DType::u8, {3}, std::as_bytes(std::span(mask))}},
        second{{"narrow", f32, {6, 4}, std::as_bytes(std::span(wide))}};
    io::write_safetensors(folder / "1.safetensors", first);
    io::write_safetensors(folder / "2.safetensors", second);
    io::write_file(folder / "model.safetensors.index.json",
                   R"({"metadata": {}, "weight_map": {"w": "1.safetensors", "mask": "1.safetensors",
                       "narrow": "2.safetensors", "more": "3.safetensors"}})");
  });
  CHECK(contains(message_of([&] { io::load_weights(program, entries, folder.path()); }),
                 "has dtype bf16, the program needs f32; LoadOptions::convert allows that"));
  CHECK(io::load_weights(program, entries, folder.path(), {.convert = true}) ==
        std::vector<std::string>{"mask", "more"});
  const std::vector<double> of_w = program.read(small.w), of_narrow = program.read(small.narrow);
  if (runtime.rank() == 0) {
    for (std::size_t i = 0; i < of_w.size(); ++i) CHECK(of_w[i] == static_cast<float>(narrow[i]));
    for (std::size_t i = 0; i < of_narrow.size(); ++i)
      CHECK(of_narrow[i] == static_cast<float>(bf16(wide[i])));
  }
  auto refusal = [&](const fs::path& path, const std::vector<io::CheckpointTensor>& wanted) {
    return message_of([&] { io::load_weights(program, wanted, path, {.convert = true}); });
  };
  CHECK(contains(refusal(folder / "1.safetensors", entries), "1.safetensors: holds no tensor 'narrow'"));
  CHECK(contains(refusal(folder.path(), {io::checkpoint_tensor(small.bias)}),
                 "index.json: holds no tensor 'bias'"));
  CHECK(contains(refusal("/dev", entries), "/dev: holds neither model.safetensors nor"));
  CHECK(contains(refusal(folder.path(), {{.state = small.w, .name = "more", .shape = {6, 8}}}),
                 "3.safetensors: cannot read: No such file"));
}

TEST_CASE("a full disk on one rank is an error on all, at the next call, and saving works again afterwards") {
  Runtime runtime(0, nullptr, quiet());
  const SharedFolder folder(runtime);
  Graph g;
  Axis row = g.axis("row", 64), column = g.axis("column", 64);
  Tensor w = g.state("w", f32, {row, column}, Initializer::normal(0, 1));
  Program program = compile(g, Plan().tile(row, 8), runtime, {.outputs = {sum(w)}});
  const std::vector<io::CheckpointTensor> entries{io::checkpoint_tensor(w)};
  io::CheckpointWriter writer(program, entries, folder.path());
  writer.save(1, {});
  writer.wait();
  for (int full : {runtime.size() - 1, 0}) {
    // A limit on the size of files stands in for a full disk; the other ranks' tiles lie within it or beyond.
    rlimit before{};
    REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
    const rlimit small{1000, before.rlim_max};
    auto* handler = std::signal(SIGXFSZ, SIG_IGN);
    runtime.barrier();
    if (runtime.rank() == full) setrlimit(RLIMIT_FSIZE, &small);
    writer.save(2, {});
    const std::string message = message_of([&] { writer.wait(); });
    setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, handler);
    CHECK(message.starts_with("[checkpoint] step 2 was not saved: "));
    CHECK(contains(message,
                   "step-00000002.partial/model.safetensors: cannot write: File too large; free some"));
    if (runtime.rank() == 0 && full != 0)
      CHECK(contains(message, "not saved: on rank " + std::to_string(full) + ": "));
    CHECK(io::newest_checkpoint(folder.path()) == folder / "step-00000001");
    runtime.barrier();
  }
  writer.save(2, {});
  writer.wait();
  runtime.barrier();
  CHECK(names_in(folder / "step-00000002") == std::set<std::string>{"model.safetensors", "state.json"});
  io::load(program, entries, folder / "step-00000002");
}

TEST_CASE("a kernel's error ends the checkpoint behind it") {
  Runtime runtime(0, nullptr, quiet());
  if (runtime.size() > 1) return;  // ends the job there
  const SharedFolder folder(runtime);
  Training run(runtime, 4);
  std::vector<std::int32_t> labels(8, 9);  // of five classes
  run.program.bind(run.network.target, labels);
  io::CheckpointWriter writer(run.program, entries_of(run.network.graph), folder.path());
  run.run(1);
  writer.save(1, {});
  CHECK(contains(message_of([&] { writer.wait(); }), "step 1 was not saved: an error, thrown elsewhere"));
  CHECK_THROWS_AS(runtime.wait(), std::out_of_range);
  CHECK(!io::newest_checkpoint(folder.path()));
}
