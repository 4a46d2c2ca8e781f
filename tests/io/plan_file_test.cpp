// Plans from TOML files: what they say, and what is wrong with them.
#include "framework/io/plan_file.hpp"

#include <doctest/doctest.h>

#include <stdexcept>

#include "framework/graph/ops.hpp"
#include "framework/plan/plans.hpp"
#include "layers/layers.hpp"

using namespace tegula;

namespace {

struct Network {
  Graph g;
  Axis batch = g.axis("batch", 12), pixel = g.axis("pixel", 6), label = g.axis("label", 5);
  layers::Mlp model{g, pixel, {8, 4}, label};
  Tensor loss =
      layers::cross_entropy(model(g.input("image", f32, {batch, pixel})), g.input("target", i32, {batch}));

  Plan read(const std::string& text) { return io::parse_plan(text, "plan.toml", g); }
  std::string error(const std::string& text) {
    try {
      read(text);
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "(no error)";
  }
};

}  // namespace

TEST_CASE("a plan file says what the calls say") {
  Network n;
  const Axis hidden1 = *n.g.find_axis("hidden1");
  const Plan read = n.read(R"(
schedule = "1f1b"
micro-batches = "batch"
fuse = false
recompute = ["linear*", "loss"]
mesh = {stage = 2, data = 3, tensor = 2, row = 1}
[proportions]
data = [1, 2, 3]
[tile]
batch = 2
hidden1 = 4
[group]
batch = 3
[shard]
batch = ["data", "row"]
[shard-parameters]
hidden1 = "tensor"
[shard-activations]
label = "tensor"
[within."linear*"]
shard-parameters.hidden1 = ["tensor", "data"]
shard.label = []
[stages]
along = "stage"
layers = {linear1 = 0, linear2 = 1, "linear3" = 1, loss = 1})");
  Plan made;
  made.mesh({{"stage", 2}, {"data", 3}, {"tensor", 2}, {"row", 1}})
      .fuse(false)
      .recompute({"linear*", "loss"});
  made.proportions("data", {1, 2, 3}).tile(n.batch, 2).tile(hidden1, 4).group(n.batch, 3);
  made.shard(n.batch, {"data", "row"}).shard(hidden1, "tensor", Placed::parameters);
  made.shard(n.label, "tensor", Placed::activations);
  made.shard_within("linear*", hidden1, {"tensor", "data"}, Placed::parameters);
  made.shard_within("linear*", n.label, {});
  made.stages("stage", {{"linear1", 0}, {"linear2", 1}, {"linear3", 1}, {"loss", 1}});
  made.micro_batches(n.batch, schedules::one_forward_one_backward());
  CHECK(read.describe(n.g) == made.describe(n.g));
  CHECK(read.fuse() == made.fuse());
  CHECK(read.schedule().name == "1f1b");
  CHECK(read.shard_dimensions(n.batch, true) == std::vector{1, 3});
  CHECK(read.shard_dimensions(hidden1, false).empty());
  CHECK(read.shard_dimensions(n.label, true).empty());
  CHECK(read.stage_of("gradient.linear2.x.") == 1);
  CHECK(n.read("").describe(n.g) == Plan().describe(n.g));
}

TEST_CASE("what is wrong with a plan file is said with its line") {
  Network n;
  auto starts = [&](const std::string& text, const std::string& expected) {
    CAPTURE(text);
    const std::string error = n.error(text);
    CAPTURE(error);
    CHECK(error.starts_with(expected));
  };
  starts("mesh = ", "plan.toml:1: not valid TOML: ");
  starts("\nfsuse = true", "plan.toml:2: unknown key 'fsuse'; known are mesh, proportions, tile, ");
  starts("fuse = 1", "plan.toml:1: expects true or false");
  starts("mesh = 4", "plan.toml:1: expects a table");
  starts("[mesh]\ndata = 2.0", "plan.toml:2: expects an integer");
  starts("[mesh]\ndata = 0", "plan.toml:1: [plan] mesh dimension data has size 0");
  starts("[mesh]\ndata = 2147483647",
         "plan.toml:1: [plan] the mesh has 2147483647 places up to dimension data; it may have 1000000");
  starts("mesh = {a = 65536, b = 65536}",
         "plan.toml:1: [plan] the mesh has 4294967296 places up to dimension b");
  starts("[tile]\nbatch = 3\npixels = 3",
         "plan.toml:3: there is no axis 'pixels'; the axes are batch, pixel, label, ");
  starts("[tile]\nbatch = -1", "plan.toml:2: [plan] the tile size of axis batch is -1");
  starts("[tile]\nbatch = 99999999999", "plan.toml:2: 99999999999 is out of range");
  starts("[shard]\nbatch = \"data\"",
         "plan.toml:2: [plan] axis batch is to be sharded along \"data\", but the mesh has no dim");
  starts("mesh = {a = 2}\nshard.batch = [\"a\", \"a\"]",
         "plan.toml:2: [plan] axis batch is to be sharded along \"a\" twice");
  starts("mesh = {a = 2, b = 2}\nshard.batch = \"a\"\nshard-parameters.batch = \"b\"",
         "plan.toml:3: [plan] axis batch is sharded along \"a\" already");
  starts("mesh = {a = 2}\nproportions.a = 2", "plan.toml:2: expects a list of integers");
  starts("mesh = {a = 2}\nproportions.a = [2]", "plan.toml:2: [plan] mesh dimension a needs 2 proportions");
  starts("mesh = {a = 2}\nproportions.a = [2, 0]",
         "plan.toml:2: [plan] mesh dimension a needs 2 proportions");
  starts("mesh = {a = 2}\nshard.batch = [1]", "plan.toml:2: expects the names of mesh dimensions");
  starts("[within.linear1]\ntile.batch = 2", "plan.toml:2: unknown key 'tile'; known are shard, shard-p");
  starts("within.linear1.shard.batch = \"a\"", "plan.toml:1: [plan] axis batch is to be sharded along \"a\"");
  starts("follow = \"rows\"", "plan.toml:1: there is no axis 'rows'");
  starts("schedule = \"1f1b\"", "plan.toml:1: a schedule orders micro-batches");
  starts("micro-batches = \"batch\"\nschedule = \"2f2b\"",
         "plan.toml:2: [schedule] there is none called \"2f2b\", only sequential, gpipe, 1f1b");
  starts("[stages]\neven = 2",
         "plan.toml:1: [plan] stages are to lie along \"stage\", but the mesh has no dimensions");
  starts("mesh = {stage = 2}\n[stages]\neven = 0", "plan.toml:3: [plan] the number of stages is 0");
  starts("mesh = {stage = 2}\n[stages]\nlayers = {linear1 = -1}",
         "plan.toml:2: [plan] layer linear1 is on stage -1");
  starts(
      "mesh = {stage = 2}\n[stages]\nlayers = {linear1 = 2147483647}",
      "plan.toml:2: [plan] layer linear1 is on stage 2147483647; stages count from 0 and end before 10000");
  starts("mesh = {stage = 2}\n[stages]\n", "plan.toml:2: stages need layers");
  starts("mesh = {stage = 2}\nshard.batch = \"stage\"\nstages.even = 2",
         "plan.toml:3: [plan] stages are to lie along \"stage\", where an axis is sharded");
}

TEST_CASE("layers are divided by their work, and no stage is left out") {
  Network n;
  using Stages = std::vector<std::pair<std::string, int>>;
  CHECK(plans::even_stages(n.g, 1) == Stages{{"linear1", 0}, {"linear2", 0}, {"linear3", 0}, {"loss", 0}});
  CHECK(plans::even_stages(n.g, 2) == Stages{{"linear1", 0}, {"linear2", 1}, {"linear3", 1}, {"loss", 1}});
  CHECK(plans::even_stages(n.g, 4) == Stages{{"linear1", 0}, {"linear2", 1}, {"linear3", 2}, {"loss", 3}});
  CHECK(plans::even_stages(n.g, 9).back().second == 3);
}

TEST_CASE("a stage is not left out where the work is all at the end") {
  Graph g;
  Tensor x = g.input("x", f32, {g.axis("i", 1)});
  for (const char* layer : {"a", "b", "c"}) {
    const Graph::Scope scope(g, layer);
    for (int k = 0; k < (layer[0] == 'c' ? 100 : 1); ++k) x = tanh(x);
  }
  CHECK(plans::even_stages(g, 3) == std::vector<std::pair<std::string, int>>{{"a", 0}, {"b", 1}, {"c", 2}});
}

TEST_CASE("a plan in space follows an axis through the graph") {
  Graph g;
  Axis n = g.axis("n", 2), c = g.axis("c", 3), h = g.axis("h", 16), w = g.axis("w", 8), o = g.axis("o", 4);
  auto filter = [&](const char* name, const Axis& to, const Axis& from) {
    return g.state(name, f32, {to, from, g.axis("rows", 3), g.axis("columns", 3)});
  };
  Tensor x = g.input("x", f32, {n, c, h, w}), mask = g.input("mask", f32, {n, o, h, w});
  Tensor y = conv2d(x, filter("first", o, c), {.padding = 1}) * mask;  // joins its places with those of x
  Tensor narrow = conv2d(y, filter("second", c, o), {.stride = 2}),
         pooled = max_pool2d(tanh(narrow), 2, {.stride = 2});
  const Plan plan = plans::spatial(g, h, 4, 2);
  CHECK(plan.mesh() == std::vector<std::pair<std::string, int>>{{"space", 2}});
  const auto tile = [&](const Tensor& t) { return plan.tile_size(t.axes()[2]); };
  CHECK(tile(y) == 4);
  CHECK(tile(narrow) == 2);  // of 7
  CHECK(tile(pooled) == 1);  // of 3
  for (const Tensor& t : {x, y, narrow, pooled}) {
    CHECK(plan.shard_dimensions(t.axes()[2], false) == std::vector{0});
    CHECK(plan.shard_dimensions(t.axes()[3], false).empty());
    CHECK(plan.tile_size(t.axes()[3]) == t.axes()[3].extent());
  }
  const Plan from_file =
      io::parse_plan("follow = \"h\"\nmesh = {space = 2}\ntile.h = 4\nshard.h = \"space\"", "plan.toml", g);
  CHECK(plan.describe(g) == from_file.describe(g));
  CHECK_THROWS_AS(plans::spatial(g, h, 0, 2), std::invalid_argument);
}

TEST_CASE("the usual plans say what their calls say") {
  Network n;
  const Axis hidden1 = *n.g.find_axis("hidden1"), hidden2 = *n.g.find_axis("hidden2");
  auto same = [&](const Plan& plan, const std::string& text) {
    CHECK(plan.describe(n.g) == n.read(text).describe(n.g));
  };
  same(plans::data_parallel(n.batch, 3),
       "mesh = {data = 3}\ntile.batch = 4\ngroup.batch = 1\nshard.batch = \"data\"");
  same(plans::data_parallel(n.batch, 3, 2),
       "mesh = {data = 3}\ntile.batch = 2\ngroup.batch = 2\nshard.batch = \"data\"");
  same(plans::tensor_parallel({hidden1, hidden2}, 2),
       "mesh = {tensor = 2}\ntile = {hidden1 = 4, hidden2 = 2}\nshard = {hidden1 = \"tensor\", hidden2 = "
       "\"tensor\"}");
  same(plans::pipeline(n.g, n.batch, 4, 2, schedules::interleaved(), 2),
       "mesh = {stage = 2}\ntile.batch = 4\nmicro-batches = \"batch\"\nschedule = "
       "\"interleaved\"\nstages.even = 4");
  same(plans::mesh_3d(n.batch, {hidden1}, {hidden2, n.pixel}, 2),
       "mesh = {x = 2, y = 2, z = 2}\ntile = {batch = 6, hidden1 = 4, hidden2 = 2, pixel = 3}\n"
       "group = {batch = 1, hidden1 = 1, hidden2 = 1, pixel = 1}\n"
       "shard = {batch = \"x\", hidden1 = \"y\", hidden2 = \"z\", pixel = \"z\"}");
}
