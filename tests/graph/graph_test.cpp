// The symbolic level: axes, shapes, messages, autodiff, and what of a graph a program keeps.
#include <doctest/doctest.h>

#include <cmath>

#include <algorithm>
#include <functional>

#include "framework/graph/ops.hpp"
#include "framework/program/listing.hpp"
#include "layers/layers.hpp"

using namespace tegula;

namespace {

// The message of the std::invalid_argument that f throws.
std::string message(const std::function<void()>& f) {
  try {
    f();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "(no error)";
}

int count(const Listing& listing, std::string_view op) {
  return static_cast<int>(
      std::ranges::count(listing.nodes, op, [](const Node& n) { return n.semantics->name; }));
}

Listing lower_one(Graph& g, const std::vector<Tensor>& outputs, const Plan& plan = {}) {
  return lower(g, plan, 0, 1, {.outputs = outputs});
}

}  // namespace

TEST_CASE("axes that an op couples are one from then on") {
  Graph g;
  Axis a = g.axis("a", 4), b = g.axis("b", 4), c = g.axis("c", 4), d = g.axis("d", 4);
  Tensor x = g.input("x", f32, {a}), y = g.input("y", f32, {b}), z = g.input("z", f32, {c});
  CHECK(a != b);
  x + y;
  CHECK(a == b);
  CHECK(b.name() == "a");  // the older one names them
  CHECK(a != c);
  y + z;
  CHECK(a == c);
  CHECK(a.id() == c.id());
  CHECK(g.axes() == Axes{a, d});
  CHECK(g.find_axis("c") == a);
  CHECK_FALSE(g.find_axis("e"));

  Plan plan;  // of the class, whichever axis it is told
  plan.tile(b, 3);
  CHECK(plan.tile_size(c) == 3);
}

TEST_CASE("axes of different extents do not join") {
  Graph g, other;
  Axis a = g.axis("a", 4), b = g.axis("b", 5);
  CHECK(message([&] { g.join(a, b); }) ==
        "[join] axis a has extent 4 and axis b has extent 5; they must be equal to be used as one");
  CHECK(message([&] { g.axis("c", -1); }) == "[axis] the extent of \"c\" is -1; it must not be negative");
  CHECK(
      message([&] { g.join(a, other.axis("d", 4)); }).starts_with("[join] axis d belongs to another graph"));
}

TEST_CASE("names of inputs and states are taken once, and a tensor has an axis once") {
  Graph g;
  Axis a = g.axis("a", 4);
  g.input("x", f32, {a});
  CHECK(message([&] { g.state("x", f32, {a}); }) == "[state] the name \"x\" is taken");
  CHECK(message([&] { g.input("x", f32, {a}); }) == "[input] the name \"x\" is taken");
  CHECK(message([&] {
          g.input("y", f32, {a, a});
        }) == "[y] has the axis a twice; give the second dimension an axis of its own");
  CHECK(g.find("x")->describe() == "x (a 4) f32");
  CHECK_FALSE(g.find("z"));
}

TEST_CASE("names of what a layer makes start with its scope") {
  Graph g;
  Axis a = g.axis("a", 4), b = g.axis("b", 3);
  layers::Linear linear(g, "first", {a}, b);
  Tensor y = linear(g.input("x", f32, {a}));
  CHECK(linear.weight.describe() == "first.weight (b 3, a 4) f32");
  CHECK(y.name() == "first.add");
}

TEST_CASE("errors of shape start with the op and name both operands") {
  Graph g;
  Axis a = g.axis("a", 4), b = g.axis("b", 3), c = g.axis("c", 2), one = g.axis("one", 1);
  Tensor x = g.state("x", f32, {a, b}), y = g.state("y", f32, {a, c}), v = g.state("v", f32, {c});
  Tensor d = g.state("d", f64, {a, b}), label = g.state("label", i32, {c}), real = g.state("real", f32, {a});
  Tensor image = g.state("image", f32, {a, b, c, one}), filter = g.state("filter", f32, {b, a, one, c});
  Tensor large = g.state("large", f32, {a, b, g.axis("rows", 5), one}), scalar = g.state("scalar", f32, {});
  struct {
    const char* start;
    const char* first;
    const char* second;  // "" where there is one operand
    std::function<void()> call;
  } const cases[] = {
      {"[add] axes c and b differ in extent", "x (a 4, b 3)", "y (a 4, c 2)", [&] { x + y; }},
      {"[multiply] ", "x (a 4, b 3)", "v (c 2)", [&] { x* v; }},
      {"[subtract] the inputs differ in dtype", "x (a 4, b 3) f32", "d (a 4, b 3) f64", [&] { x - d; }},
      {"[divide] ", "real (a 4)", "v (c 2)", [&] { real / v; }},
      {"[matmul] inner axes differ", "x (a 4, b 3)", "y (a 4, c 2)", [&] { matmul(x, y); }},
      {"[matmul] takes", "x (a 4, b 3)", "v (c 2)", [&] { matmul(x, v); }},
      {"[contract] dtypes differ", "x (a 4, b 3) f32", "d (a 4, b 3) f64", [&] { contract(x, d, {a}); }},
      {"[contract] axis b is summed", "x (a 4, b 3)", "y (a 4, c 2)", [&] { contract(x, y, {c}); }},
      {"[contract] the output's axis one", "x (a 4, b 3)", "y (a 4, c 2)",
       [&] {
         contract(x, y, {one, b, c});
       }},
      {"[sum] axis c", "x (a 4, b 3)", "", [&] { sum(x, {c}); }},
      {"[mean] axis c", "x (a 4, b 3)", "", [&] { mean(x, {c}); }},
      {"[max] axis c", "x (a 4, b 3)", "", [&] { max(x, {c}); }},
      {"[log_sum_exp] axis c", "x (a 4, b 3)", "", [&] { log_sum_exp(x, {c}); }},
      {"[softmax] ", "scalar ()", "", [&] { softmax(scalar); }},
      {"[softmax_cross_entropy] ", "x (a 4, b 3)", "label (c 2)", [&] { softmax_cross_entropy(x, label); }},
      {"[softmax_cross_entropy] ", "x (a 4, b 3)", "real (a 4) f32", [&] { softmax_cross_entropy(x, real); }},
      {"[one_hot] ", "real (a 4) f32", "", [&] { one_hot(real, b, f32); }},
      {"[cast] ", "x (a 4, b 3)", "", [&] { cast(x, i32); }},
      {"[permute] ", "x (a 4, b 3)", "",
       [&] {
         permute(x, {a, c});
       }},
      {"[broadcast_to] axis b", "x (a 4, b 3)", "",
       [&] {
         broadcast_to(x, {a, c});
       }},
      {"[conv2d] takes", "x (a 4, b 3)", "filter (b 3,", [&] { conv2d(x, filter); }},
      {"[conv2d] ", "image (a 4, b 3,", "filter (b 3, a 4,", [&] { conv2d(image, filter); }},
      {"[conv2d] the kernel is larger", "image (a 4, b 3,", "large (a 4, b 3,",
       [&] { conv2d(image, large); }},
      {"[max_pool2d] the kernel is larger", "image (a 4, b 3,", "", [&] { max_pool2d(image, 3, {}); }},
      {"[avg_pool2d] takes", "x (a 4, b 3)", "", [&] { avg_pool2d(x, 3, {}); }},
      {"[sgd] ", "x (a 4, b 3)", "y (a 4, c 2)", [&] { sgd(x, {}, y, {}); }},
      {"[adam] the moment", "v (c 2)", "x (a 4, b 3)", [&] { adam(x, v, v, x, {}); }},
      {"[gradients] the loss must be a scalar", "x (a 4, b 3)", "", [&] { gradients(x, {}); }},
  };
  for (const auto& [start, first, second, call] : cases) {
    const std::string text = message(call);
    CAPTURE(text);
    CHECK(text.starts_with(start));
    CHECK(text.find(first) != std::string::npos);
    CHECK(text.find(second) != std::string::npos);
  }
  CHECK(message([&] { dropout(x, 1); }).starts_with("[dropout] the probability must be in [0, 1)"));
  CHECK(message([&] { conv2d(image, image, {.stride = 0}); }).starts_with("[conv2d] stride"));
  CHECK(message([&] { avg_pool2d(image, 0, {}); }).starts_with("[avg_pool2d] needs kernel"));
}

TEST_CASE("a gradient that nothing flows into is empty, and derivatives end where there are no kernels") {
  Graph g;
  Axis a = g.axis("a", 4);
  Tensor x = g.state("x", f64, {a}), y = g.state("y", f64, {a});
  CHECK_FALSE(gradients(sum(x), std::vector{y})[0]);
  CHECK_FALSE(gradients(sum(apply(pointwise::Less{}, x, y)), std::vector{x})[0]);
  Tensor d = sum(gelu(x));
  for (int order = 1; order <= 2; ++order) d = sum(gradients(d, std::vector{x})[0]);
  CHECK(message([&] { gradients(d, std::vector{x}); }) == "[gelu_slope_slope0] has no third derivative");
}

TEST_CASE("a tensor used twice gets the sum of both gradients, each op differentiated once") {
  Graph g;
  Axis a = g.axis("a", 4);
  Tensor x = g.state("x", f64, {a});
  Tensor h = tanh(x), loss = sum(h * h + h);
  std::vector<Tensor> d = gradients(loss, std::vector{x});
  Listing listing = lower_one(g, d);
  CHECK(count(listing, "tanh") == 1);
  CHECK(count(listing, "tanh_output_slope") == 1);
}

TEST_CASE("a program keeps only what its outputs and updates need") {
  Graph g;
  Axis batch = g.axis("batch", 4), in = g.axis("in", 3), label = g.axis("label", 2);
  Tensor x = g.input("x", f32, {batch, in}), target = g.input("target", i32, {batch});
  layers::Mlp model(g, in, {5}, label);
  Tensor logits = model(x), loss = layers::cross_entropy(logits, target);
  exp(logits);  // wanted by nobody
  layers::sgd(g, loss, model.parameters());

  auto fills = [](const Listing& listing) {
    return std::ranges::count(listing.instructions, Instruction::Kind::fill, &Instruction::kind);
  };
  Listing training = lower_one(g, {loss});
  CHECK(count(training, "exp") == 0);
  CHECK(count(training, "sgd") == 4);
  CHECK(fills(training) == 2);
  Listing evaluation = lower(g, {}, 0, 1, {.outputs = {logits}, .updates = false});
  CHECK(count(evaluation, "sgd") == 0);
  CHECK(count(evaluation, "softmax_cross_entropy") == 0);
  CHECK(fills(evaluation) == 1);  // the target is not read
  CHECK(lower(g, {}, 0, 1, {.updates = false}).instructions.empty());
}

TEST_CASE("softmax and cross-entropy are computed by other ops when a plan cuts the classes") {
  Graph g;
  Axis rows = g.axis("rows", 4), classes = g.axis("classes", 6);
  Tensor x = g.state("x", f64, {rows, classes}), target = g.state("target", i32, {rows});
  Tensor y = softmax(x), loss = sum(y * x) + sum(softmax_cross_entropy(x, target));
  std::vector<Tensor> outputs = gradients(loss, std::vector{x});
  outputs.push_back(loss);
  const std::size_t nodes = g.nodes().size();
  for (const char* op : {"softmax", "softmax_grad", "softmax_cross_entropy"}) {
    CHECK(count(lower_one(g, outputs, Plan().tile(rows, 2)), op) == 1);
    CHECK(count(lower_one(g, outputs, Plan().tile(classes, 4)), op) == 0);
  }
  CHECK(g.nodes().size() == nodes);  // expansions do not stay in the graph
}

TEST_CASE("attention has no task, and no flops, for keys that are all behind the queries") {
  Graph g;
  Axis batch = g.axis("batch", 1), sequence = g.axis("sequence", 8), head = g.axis("head", 1),
       dim = g.axis("dim", 2);
  auto state = [&](const char* name) { return g.state(name, f32, {batch, sequence, head, dim}); };
  Tensor q = state("q"), k = state("k"), v = state("v");
  Tensor causal = attention(q, k, v, {.causal = true}), full = attention(q, k, v);
  const Plan cut = Plan().tile(sequence, 2);
  const Listing whole = lower_one(g, {causal}, Plan()), some = lower_one(g, {causal}, cut),
                all = lower_one(g, {full}, cut);
  CHECK(whole.tasks == 1);
  CHECK(some.tasks == 4 * 5 / 2);
  CHECK(all.tasks == 4 * 4);
  CHECK(some.flops == whole.flops);  // of 36 pairs
  CHECK(all.flops == doctest::Approx(some.flops * 64 / 36));
  // Backward: pairs of tiles once for the queries, once for keys and values.
  const std::vector<Tensor> by = gradients(sum(causal * causal), std::vector{q, k});
  auto named = [](const Listing& listing, std::string_view name) {
    return std::ranges::count_if(listing.instructions, [&](const Instruction& i) {
      return i.kind == Instruction::Kind::task && i.spec.op->name == name;
    });
  };
  const Listing back = lower_one(g, by, cut);
  CHECK(named(back, "attention_grad_query") == 10);
  CHECK(named(back, "attention_grad_key_value") == 10);
  CHECK(named(lower_one(g, by, Plan()), "attention_grad") == 1);
}

TEST_CASE("plans that do not fit are refused") {
  Graph g;
  Axis n = g.axis("n", 4), c = g.axis("c", 3), h = g.axis("h", 6), w = g.axis("w", 5);
  Tensor x = g.state("x", f32, {n, c, h, w}), y = max_pool2d(x, 2, {.stride = 2});
  Axis rows = g.axis("rows", 3);
  Tensor convolved = conv2d(x, g.state("filter", f32, {g.axis("o", 2), c, rows, g.axis("columns", 3)}));
  Plan two;
  two.mesh({{"data", 2}, {"tensor", 2}});

  CHECK(message([&] { Plan().tile(n, 0); }) == "[plan] the tile size of axis n is 0; it must be at least 1");
  CHECK(message([&] { Plan().group(n, 0); }) ==
        "[plan] the group size of axis n is 0; it must be at least 1");
  CHECK(message([&] {
          Plan().mesh({{"data", 0}});
        }) == "[plan] mesh dimension data has size 0; it must be at least 1");
  CHECK(message([&] { Plan().shard(n, "data"); }) ==
        "[plan] axis n is to be sharded along \"data\", but the mesh has no dimensions");
  CHECK(message([&] { Plan(two).shard(n, "stage"); }) ==
        "[plan] axis n is to be sharded along \"stage\", but the mesh has only data, tensor");
  CHECK(message([&] { Plan(two).shard(n, "data").shard(n, "tensor"); }) ==
        "[plan] axis n is sharded along \"data\" already");
  CHECK(message([&] { lower(g, two, 0, 3, {.outputs = {y}}); }) ==
        "[plan] the mesh (data=2, tensor=2) has 4 places but the job has 3 ranks; start as many ranks or "
        "change "
        "the mesh");
  CHECK(message([&] { lower(g, Plan(two).shard(n, "data").shard(c, "data"), 0, 4, {.outputs = {y}}); }) ==
        "[plan] x (n 4, c 3, h 6, w 5) f32 has two axes, n and c, sharded along \"data\"; they need mesh "
        "dimensions of "
        "their own");
  CHECK(message([&] { lower_one(g, {convolved}, Plan().tile(rows, 2)); }) ==
        "[conv] needs axis rows in one tile, but the plan cuts its extent 3 into tiles of 2; leave the "
        "axis whole");
  CHECK(message([&] {
          lower(g, {}, 0, 1, {.outputs = {y}, .extents = {{n, 0}}});
        }) == "[compile] axis n has extent 0; a program needs at least 1");
  CHECK(message([&] {
          Graph layered;
          Tensor a = layered.input("a", f32, {layered.axis("n", 2)});
          {
            Graph::Scope scope(layered, "first");
            a = tanh(a);
          }
          {
            Graph::Scope scope(layered, "second.part");
            a = tanh(a);
          }
          Plan plan;
          lower(layered, plan.mesh({{"stage", 1}}).stages("stage", {{"third", 0}}), 0, 1, {.outputs = {a}});
        }) ==
        "[plan] layer third is to be on stage 0, but the graph has no scope of that name; there are first, "
        "second");
  CHECK(message([&] {
          Graph layered;
          const Axis a = layered.axis("n", 2);
          Tensor x = layered.input("x", f32, {a});
          {
            const Graph::Scope scope(layered, "block1.mlp");
            x = tanh(x);
          }
          Plan plan;
          plan.mesh({{"row", 1}}).shard_within("block?.mlp", a, {"row"});
          lower(layered, plan, 0, 1, {.outputs = {x}});  // the pattern matches
          lower(layered, plan.shard_within("block*.norm", a, {}), 0, 1, {.outputs = {x}});
        }) ==
        "[plan] an axis is to be sharded otherwise within block*.norm, but the graph has no scope of that "
        "name; "
        "there are block1");
  const auto with_schedule = [&](int place, double time) {
    Graph layered;
    const Axis a = layered.axis("n", 4);
    const Graph::Scope scope(layered, "layer");
    const Tensor x = tanh(layered.input("x", f32, {a}));
    const Schedule own{"own", [=](const Pipeline&, int, int m) { return m == 1 ? place : 0; },
                       [=](const Pipeline&, int, int m, Pass) { return m == 1 ? time : 0; }};
    Plan plan;
    plan.mesh({{"stage", 2}}).tile(a, 2).stages("stage", {{"layer", 0}}).micro_batches(a, own);
    lower(layered, plan, 0, 2, {.outputs = {x}});
  };
  with_schedule(1, 1);
  CHECK(message([&] { with_schedule(2, 1); }) ==
        "[plan] the schedule own has stage 0 work on micro-batch 1 at place 2 of mesh dimension \"stage\", "
        "which has 2");
  CHECK(message([&] { with_schedule(0, std::nan("")); }) ==
        "[plan] the schedule own has stage 0 work on micro-batch 1 at a time that is not a finite number");
  // A tile beyond the extent is one tile.
  CHECK(lower_one(g, {y}, Plan().tile(n, 100)).tasks == 1);
}
