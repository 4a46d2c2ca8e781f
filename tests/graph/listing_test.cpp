// Lowering: that listings of any number of ranks fit together, mean the same, and predict their own traffic.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "framework/graph/ops.hpp"
#include "framework/plan/plans.hpp"
#include "layers/layers.hpp"
#include "tests/graph/execution.hpp"
#include "tests/program/closed_forms.hpp"

using namespace tegula;
using test::Execution;

namespace {

std::vector<Listing> lower_all(Graph& g, const Plan& plan, int ranks, const CompileOptions& options) {
  std::vector<Listing> all;
  for (int rank = 0; rank < ranks; ++rank) all.push_back(lower(g, plan, rank, ranks, options));
  return all;
}

struct Network : test::Perceptron {
  using Perceptron::Perceptron;
  Axis hidden1 = hidden(1), hidden2 = hidden(2);

  std::vector<Listing> lower_all(const Plan& plan, int ranks) {
    return ::lower_all(g, plan, ranks, {.outputs = {loss, logits}});
  }
};

template <class T>
T total(const std::vector<Listing>& ranks, T Listing::*member) {
  return std::accumulate(ranks.begin(), ranks.end(), T(0),
                         [&](T sum, const Listing& listing) { return sum + listing.*member; });
}

// That ranks under the plan compute what one does and send what the literature says.
std::vector<Listing> check_sent(Graph& g, const test::ClosedForm& form, int ranks) {
  CAPTURE(form.name);
  CAPTURE(form.plan.describe(g));
  const std::vector<Listing> listings = lower_all(g, form.plan, ranks, form.options);
  CHECK(total(listings, &Listing::sent_bytes) == form.bytes);
  CHECK(total(listings, &Listing::received_bytes) == form.bytes);
  for (std::size_t rank = 0; rank < form.rank_bytes.size(); ++rank)
    CHECK(listings[rank].sent_bytes == form.rank_bytes[rank]);
  const Execution execution(listings), alone(lower_all(g, form.plan.on_one_rank(), 1, form.options));
  CHECK(execution.outputs() == alone.outputs());
  CHECK(execution.state() == alone.state());
  CHECK(execution.tasks() == alone.tasks());
  return listings;
}

}  // namespace

TEST_CASE("listings of any number of ranks fit together and compute the same in the same order") {
  Network n;
  Plan tiling;
  tiling.tile(n.batch, 2).tile(n.pixel, 4).tile(n.hidden1, 3).tile(n.hidden2, 2);
  Plan cut_classes = tiling;
  cut_classes.tile(n.label, 2).group(n.batch, 3).group(n.hidden1, 2);
  for (const Plan& tiles : {tiling, cut_classes}) {
    const std::vector<Listing> alone = n.lower_all(tiles, 1);
    const Execution reference(alone);
    CHECK(reference.messages() == 0);
    CHECK(alone[0].sent_bytes == 0);
    for (int ranks = 1; ranks <= 8; ++ranks) {
      using Mesh = std::vector<std::pair<std::string, int>>;
      std::vector<Plan> plans{Plan(tiles), Plan(tiles).mesh({{"data", ranks}}).shard(n.batch, "data"),
                              Plan(tiles).mesh({{"tensor", ranks}}).shard(n.hidden1, "tensor")};
      if (ranks % 2 == 0) {
        const Mesh grid{{"data", ranks / 2}, {"tensor", 2}};
        plans.push_back(Plan(tiles).mesh(grid).shard(n.batch, "data").shard(n.hidden1, "tensor"));
        plans.push_back(Plan(tiles).mesh(grid).shard(n.hidden2, "data").shard(n.pixel, "tensor"));
      }
      for (const Plan& plan : plans) {
        CAPTURE(ranks);
        CAPTURE(plan.describe(n.g));
        const std::vector<Listing> listings = n.lower_all(plan, ranks);
        const Execution execution(listings);
        CHECK(execution.outputs() == reference.outputs());
        CHECK(execution.state() == reference.state());
        CHECK(execution.tasks() == reference.tasks());
        CHECK(total(listings, &Listing::tasks) == alone[0].tasks);
        CHECK(total(listings, &Listing::flops) == doctest::Approx(alone[0].flops));
        CHECK(total(listings, &Listing::state_bytes) == alone[0].state_bytes);
        CHECK(total(listings, &Listing::sent_bytes) == total(listings, &Listing::received_bytes));
        for (const Listing& listing : listings) CHECK(listing.peak_bytes >= listing.state_bytes);
      }
    }
  }
}

TEST_CASE("micro-batches one behind the other compute the same, of which less lies around") {
  Network n;
  Plan tiling;
  tiling.tile(n.batch, 2).tile(n.pixel, 4).tile(n.hidden1, 3).tile(n.hidden2, 2);
  for (int group : {1, 2, 100})
    for (int ranks : {1, 2, 3}) {
      Plan plan = tiling;
      plan.group(n.batch, group).mesh({{"data", ranks}}).shard(n.batch, "data");
      const Execution usual(n.lower_all(plan, ranks));
      const std::vector<Listing> listings = n.lower_all(Plan(plan).micro_batches(n.batch), ranks);
      const Execution execution(listings);
      CHECK(execution.outputs() == usual.outputs());
      CHECK(execution.state() == usual.state());
      CHECK(execution.tasks() == usual.tasks());
      CHECK(execution.messages() == usual.messages());
      if (ranks == 1) CHECK(listings[0].peak_bytes < n.lower_all(plan, 1)[0].peak_bytes);
    }
}

TEST_CASE("pipelines of every schedule compute the same as one rank") {
  Network n;
  Plan tiling;
  tiling.tile(n.batch, 2).tile(n.pixel, 4).tile(n.hidden1, 3).tile(n.hidden2, 2);
  const Execution alone(n.lower_all(tiling, 1));
  for (const std::string& name : schedules::names())
    for (int data : {1, 2})
      for (int places = 1; places <= 4; ++places)
        for (int stages : {places, 2 * places}) {
          std::vector<std::pair<std::string, int>> layers;
          const char* const in_order[] = {"linear1", "linear2", "linear3", "loss"};
          for (int i = 0; i < 4; ++i) layers.emplace_back(in_order[i], i * stages / 4);
          Plan plan = tiling;
          plan.mesh({{"data", data}, {"stage", places}})
              .shard(n.batch, "data")
              .stages("stage", layers)
              .micro_batches(n.batch, schedules::find(name));
          CAPTURE(name);
          CAPTURE(plan.describe(n.g));
          const std::vector<Listing> listings = n.lower_all(plan, data * places);
          const Execution execution(listings);
          CHECK(execution.outputs() == alone.outputs());
          CHECK(execution.state() == alone.state());
          CHECK(execution.tasks() == alone.tasks());
        }
}

TEST_CASE("random plans compute the same as one rank, or are refused") {
  Network n;
  std::mt19937 random(1);
  auto up_to = [&](int most) { return static_cast<int>(random() % (most + 1)); };
  int computed = 0, refused = 0;
  for (int i = 0; i < 200; ++i) {
    Plan plan;
    int ranks = 1;
    try {
      std::vector<std::pair<std::string, int>> mesh;
      for (const char* name : {"a", "b", "c"})
        if (const int size = 1 + up_to(2); ranks * size <= 12) mesh.emplace_back(name, size), ranks *= size;
      plan.mesh(mesh);
      if (up_to(2) == 0) {
        std::vector<int> parts;
        for (int k = 0; k < mesh[0].second; ++k) parts.push_back(1 + up_to(3));
        plan.proportions("a", parts);
      }
      if (up_to(1) == 0) {
        std::vector<std::pair<std::string, int>> layers;
        for (const char* layer : {"linear1", "linear2", "linear3", "loss"})
          if (up_to(4) > 0) layers.emplace_back(layer, up_to(3));
        plan.stages("a", layers);
      }
      for (const Axis& axis : n.g.axes()) {
        if (up_to(2) > 0)
          plan.tile(axis, 1 + up_to(static_cast<int>(axis.extent()))).group(axis, 1 + up_to(3));
        for (const Placed which : {Placed::parameters, Placed::activations})
          if (up_to(3) == 0) {
            std::vector<std::string> along{mesh[up_to(static_cast<int>(mesh.size()) - 1)].first};
            if (up_to(3) == 0) along.push_back(mesh[up_to(static_cast<int>(mesh.size()) - 1)].first);
            plan.shard(axis, along, which);
          }
      }
      const std::vector<std::string> names = schedules::names();
      if (up_to(1) == 0)
        plan.micro_batches(n.batch, schedules::find(names[up_to(static_cast<int>(names.size()) - 1)]));
      CAPTURE(plan.describe(n.g));
      const Execution execution(n.lower_all(plan, ranks)), alone(n.lower_all(plan.on_one_rank(), 1));
      CHECK(execution.outputs() == alone.outputs());
      CHECK(execution.state() == alone.state());
      CHECK(execution.tasks() == alone.tasks());
      ++computed;
    } catch (const std::invalid_argument& error) {
      CHECK(std::string(error.what()).starts_with("[plan] "));
      ++refused;
    }
  }
  CHECK(computed >= 50);
  CHECK(refused >= 50);
}

TEST_CASE("a rank gets tiles in proportion to its speed") {
  Network n;
  Plan plan;
  plan.tile(n.batch, 1)
      .group(n.batch, 1)
      .mesh({{"data", 3}})
      .shard(n.batch, "data")
      .proportions("data", {6, 1, 6});
  const std::vector<Listing> listings = n.lower_all(plan, 3);
  const Execution execution(listings), alone(n.lower_all(plan.on_one_rank(), 1));
  CHECK(execution.outputs() == alone.outputs());
  CHECK(execution.state() == alone.state());
  auto images = [&](int rank) {
    return std::ranges::count_if(listings[rank].instructions, [&](const Instruction& instruction) {
      return instruction.kind == Instruction::Kind::fill &&
             listings[rank].buffers[instruction.buffers[0]].tensor == n.image.id();
    });
  };
  CHECK(images(0) == 6);
  CHECK(images(1) == 1);
  CHECK(images(2) == 6);
}

TEST_CASE("a pipeline sends activations on and their gradients back, nothing else") {
  for (const int stages : {1, 2, 3, 4, 8})
    for (const std::string& name : schedules::names()) {
      if (name == "chimera") continue;  // its second pipeline has the weights sent
      std::vector<std::int64_t> hidden{7, 4, 3, 6, 2, 5, 8};
      hidden.resize(stages - 1);
      test::Perceptron n(13, hidden);
      const std::vector<Listing> listings = check_sent(n.g, test::pipeline(n, stages, name), stages);
      if (stages == 1) continue;
      const std::int64_t boundary = n.batch.extent() * hidden[0] * 4, outputs = 4 + n.logits.elements() * 4;
      CHECK(listings[0].received_bytes == boundary + outputs);
    }
}

TEST_CASE("live micro-batches of a stage are those of the literature") {
  Graph g;
  constexpr int stages = 4, micro_batches = 9;
  Axis batch = g.axis("batch", 2 * micro_batches), width = g.axis("width", 3);
  Tensor x = g.input("x", f32, {batch, width});
  layers::Parameters parameters;
  std::vector<std::pair<std::string, int>> layers;
  for (int s = 0; s < stages; ++s) {
    const std::string name = "layer" + std::to_string(s);
    Graph::Scope scope(g, name);
    parameters.push_back(g.state(name, f32, {width}));
    x = tanh(x * parameters.back());
    layers.emplace_back(name, s);
  }
  layers::sgd(g, mean(x), parameters);
  // Of how many micro-batches a stage keeps activations at once, in the order of its listing.
  auto live = [&](const Schedule& schedule, int rank) {
    const Plan plan = Plan()
                          .tile(batch, 2)
                          .mesh({{"stage", stages}})
                          .stages("stage", layers)
                          .micro_batches(batch, schedule);
    const Listing listing = lower(g, plan, rank, stages, {});
    std::map<int, int> kept;  // buffers, by tile
    std::set<int> begun;
    std::size_t most = 0;
    for (const Instruction& instruction : listing.instructions) {
      const auto forward = [&](int b) {
        const Node* node = instruction.node < 0 ? nullptr : &listing.nodes[instruction.node];
        return node != nullptr && !node->scope.starts_with(gradient_scope) && node->outputs.size() == 1 &&
               listing.buffers[b].tensor == node->outputs[0].id() && node->outputs[0].has(batch);
      };
      for (int b : instruction.buffers)
        if (b >= 0 && forward(b) && begun.insert(b).second) ++kept[listing.buffers[b].tile];
      most = std::max(most, kept.size());
      if (instruction.kind == Instruction::Kind::drop && begun.contains(instruction.buffers[0]))
        if (const int tile = listing.buffers[instruction.buffers[0]].tile; --kept[tile] == 0)
          kept.erase(tile);
    }
    // And no more than that can be: of what gradients read, each tensor has memory for so many.
    std::map<int, std::set<int>> memories;
    for (const Instruction& instruction : listing.instructions)
      for (int b : instruction.buffers)
        if (instruction.node >= 0 && listing.nodes[instruction.node].scope.starts_with(gradient_scope) &&
            begun.contains(b))
          memories[listing.buffers[b].tensor].insert(listing.memory(b));
    CHECK(!memories.empty());
    for (const auto& [tensor, of_tensor] : memories) CHECK(of_tensor.size() <= most);
    return static_cast<int>(most);
  };
  for (int s = 0; s < stages; ++s) {
    CAPTURE(s);
    CHECK(live(schedules::sequential(), s) == 1);
    CHECK(live(schedules::gpipe(), s) == micro_batches);
    CHECK(live(schedules::one_forward_one_backward(), s) == stages - s);
    CHECK(live(schedules::zero_bubble_h1(), s) <= stages);
    CHECK(live(schedules::zero_bubble_h2(), s) <= 2 * stages - 1);
    CHECK(live(schedules::chimera(), s) <= stages + 1);
  }
}

TEST_CASE("recomputation takes less memory and more work") {
  Graph g;
  Axis batch = g.axis("batch", 4), width = g.axis("width", 5);
  Tensor x = g.input("x", f64, {batch, width});
  layers::Parameters parameters;
  for (int i = 0; i < 6; ++i) {
    Graph::Scope scope(g, "block" + std::to_string(i));
    parameters.push_back(g.state("w" + std::to_string(i), f64, {width}));
    for (int k = 0; k < 4; ++k) x = dropout(tanh(x * parameters.back()), 0.1);
  }
  Tensor loss = mean(x * x);
  layers::sgd(g, loss, parameters);
  auto all = [&](const Plan& plan) { return lower(g, plan, 0, 1, {.outputs = {loss}}); };
  const Listing kept = all(Plan());
  auto forward_tasks = [&](const Listing& listing, std::string_view scope) {
    return std::ranges::count_if(listing.nodes, [&](const Node& node) {
      return node.semantics->name == "tanh" && node.scope.find(scope) != std::string::npos;
    });
  };
  CHECK(forward_tasks(kept, "block3") == 4);
  const Listing blocks = all(Plan().recompute({"block*"}));
  CHECK(forward_tasks(blocks, "block3") == 8);
  CHECK(blocks.peak_bytes < 0.7 * static_cast<double>(kept.peak_bytes));
  CHECK(blocks.flops > kept.flops);
  const Listing one = all(Plan().recompute({"block3"}));
  CHECK(forward_tasks(one, "block3") == 8);
  CHECK(forward_tasks(one, "block2") == 4);
  CHECK(forward_tasks(all(Plan().recompute({"block3.x", "block"})), "block3") == 4);
  for (const Plan& plan : {Plan().recompute({""}), Plan().recompute({"block*"}).tile(batch, 2),
                           Plan().recompute({"block*"}).tile(batch, 1).micro_batches(batch)})
    CHECK_NOTHROW(Execution({all(plan)}));
}

TEST_CASE("an update waits for all micro-batches that read what it overwrites") {
  Graph g;
  Axis batch = g.axis("batch", 6), i = g.axis("i", 3);
  Tensor x = g.input("x", f32, {batch, i}), w = g.state("w", f32, {i}), d = g.state("d", f32, {i});
  Tensor y = x * w;
  sgd(w, {}, d, {});  // needs nothing of the batch
  const Plan plan = Plan().tile(batch, 2);
  const Execution usual({lower(g, plan, 0, 1, {.outputs = {y}})});
  const Execution execution({lower(g, Plan(plan).micro_batches(batch), 0, 1, {.outputs = {y}})});
  CHECK(execution.outputs() == usual.outputs());
  CHECK(execution.state() == usual.state());
}

TEST_CASE("data parallelism moves every parameter out once and every gradient back once") {
  for (const int ranks : {1, 2, 3, 4, 8}) {
    // 7 tiles, 5 for three ranks, 8 for eight: what the tree adds up in pairs then lies on one rank.
    test::Perceptron n(ranks == 8 ? 16 : 13);
    const std::vector<Listing> listings =
        check_sent(n.g, test::data_parallel(n, ranks, ranks == 3 ? 3 : 2), ranks);
    // Weights, two moments of each: cut and dealt out, none of them twice.
    CHECK(total(listings, &Listing::state_bytes) == 3 * n.parameter_bytes());
  }
}

TEST_CASE("tensor parallelism in 1, 2, 2.5 and 3 dimensions moves what the literature says") {
  test::TwoProducts n;
  const auto check = [&](test::ClosedForm form, int ranks) {
    check_sent(n.g, form, ranks);
    // And the training step computes what one rank does.
    form.options.updates = true;
    const Execution execution(lower_all(n.g, form.plan, ranks, form.options)),
        alone(lower_all(n.g, form.plan.on_one_rank(), 1, form.options));
    CHECK(execution.outputs() == alone.outputs());
    CHECK(execution.state() == alone.state());
    CHECK(execution.tasks() == alone.tasks());
  };
  for (const int p : {2, 3, 4, 8}) check(n.in_1d(p), p);
  for (const int q : {2, 3}) {
    check(n.in_2d(q), q * q);
    check(n.in_2d(q, 2), q * q * 2);
    check(n.in_3d(q), q * q * q);
  }
}

TEST_CASE("what many ranks read goes down a tree") {
  Network n;
  for (int ranks : {2, 5, 8, 13}) {
    Plan plan;
    plan.tile(n.batch, 1).mesh({{"data", ranks}}).shard(n.batch, "data");
    const std::vector<Listing> listings = n.lower_all(plan, ranks);
    const Execution execution(listings), alone(n.lower_all(plan.on_one_rank(), 1));
    CHECK(execution.state() == alone.state());
    const Tensor weight = n.model.parameters()[0];
    int all = 0, most = 0;
    for (const Listing& listing : listings) {
      const auto sends =
          static_cast<int>(std::ranges::count_if(listing.instructions, [&](const Instruction& instruction) {
            return instruction.kind == Instruction::Kind::send &&
                   listing.buffers[instruction.buffers[0]].tensor == weight.id();
          }));
      all += sends;
      most = std::max(most, sends);
    }
    CHECK(all == ranks - 1);  // every other rank gets it once
    CHECK(most <= std::bit_width(static_cast<unsigned>(ranks - 1)));
  }
}

TEST_CASE("neighbours exchange the rows that windows reach over") {
  for (const int kernel : {3, 5, 7}) {
    test::TwoConvolutions n(kernel);
    for (const int ranks : {1, 2, 3, 4, 8}) {
      std::map<int, std::int64_t> sent;  // bytes of parts of tiles, by tensor
      for (const Listing& listing : check_sent(n.g, n.in_space(ranks), ranks))
        for (const Instruction& instruction : listing.instructions) {
          if (instruction.kind != Instruction::Kind::send) continue;
          const Buffer& buffer = listing.buffers[instruction.buffers[0]];
          if (buffer.kind == Buffer::Kind::part) sent[buffer.tensor] += buffer.bytes();
        }
      CHECK(sent[n.hidden.id()] == n.exchanged(ranks));
    }
  }
}

TEST_CASE("memory comes back: a chain of ops takes that of a few tensors, however long") {
  for (const int ops : {20, 200, 2000}) {
    Graph g;
    Axis a = g.axis("a", 100);
    Tensor x = g.input("x", f64, {a});
    for (int i = 0; i < ops; ++i) x = tanh(x);
    auto all = [&](const Plan& plan) { return lower(g, plan, 0, 1, {.outputs = {x}}); };
    CHECK(all({}).tasks == ops);
    CHECK(all({}).peak_bytes == (std::min(ops + 1, 66)) * 100 * 8);
    CHECK(all(Plan().recompute({""})).peak_bytes == 3 * 100 * 8);  // a plan that is to save memory
  }
}

TEST_CASE("a program of other extents shares the tiles of state") {
  Network n;
  Plan plan;
  plan.tile(n.batch, 4).mesh({{"data", 2}}).shard(n.batch, "data");
  for (std::int64_t extent : {1, 3, 4, 5, 13}) {
    std::vector<Listing> listings;
    for (int rank = 0; rank < 2; ++rank)
      listings.push_back(lower(n.g, plan, rank, 2, {.outputs = {n.loss}, .extents = {{n.batch, extent}}}));
    const Execution execution(listings);
    CHECK(execution.outputs().size() == 1);
    CHECK(execution.state().size() == 3 * 6);
  }
}

TEST_CASE("images in parts: what crosses ranks are neighbours' tiles, and the results stay") {
  Graph g;
  Axis batch = g.axis("batch", 4), color = g.axis("color", 2), height = g.axis("height", 24),
       label = g.axis("label", 5), map1 = g.axis("map1", 3), map2 = g.axis("map2", 4);
  Tensor image = g.input("image", f32, {batch, color, height, g.axis("width", 10)}),
         target = g.input("target", i32, {batch});
  const layers::Conv2d first(g, "conv1", color, map1, 3, {.padding = 1}),
      second(g, "conv2", map1, map2, 5, {.padding = 2});
  Tensor a = relu(first(image)), b = relu(second(max_pool2d(a, 2, {.stride = 2})));
  Tensor y = avg_pool2d(b, 3, {.stride = 2, .padding = 1});
  const layers::Linear last(g, "linear", {y.axes()[1], y.axes()[2], y.axes()[3]}, label);
  Tensor loss = layers::cross_entropy(last(y), target);
  layers::Parameters parameters;
  for (const auto& some : {first.parameters(), second.parameters(), last.parameters()})
    parameters.insert(parameters.end(), some.begin(), some.end());
  layers::adamw(g, loss, parameters);

  for (std::int64_t tiles : {1, 2, 3, 6, 8})
    for (int ranks = 1; ranks <= 4; ++ranks) {
      const Plan plan = plans::spatial(g, height, height.extent() / tiles, ranks);
      for (const Tensor& x : {image, a, b, y}) {
        const std::int64_t extent = x.axes()[2].extent(),
                           size = std::min(plan.tile_size(x.axes()[2]), extent);
        CHECK((extent + size - 1) / size ==
              (tiles == 8 && extent < 24 ? 6 : tiles));  // 12 and 6 are not cut in 8
        CHECK(plan.tile_size(x.axes()[3]) >= x.axes()[3].extent());
      }
      CAPTURE(plan.describe(g));
      std::vector<Listing> listings;
      for (int rank = 0; rank < ranks; ++rank)
        listings.push_back(lower(g, plan, rank, ranks, {.outputs = {loss, y}}));
      const std::vector<Listing> one{lower(g, plan.on_one_rank(), 0, 1, {.outputs = {loss, y}})};
      const Execution execution(listings), alone(one);
      CHECK(execution.outputs() == alone.outputs());
      CHECK(execution.state() == alone.state());
      CHECK(execution.tasks() == alone.tasks());
      CHECK(total(listings, &Listing::flops) == doctest::Approx(one[0].flops));
      // Going forward, windows are put together where their outputs are computed.
      for (int rank = 0; rank < ranks; ++rank) {
        const Listing forward = lower(g, plan, rank, ranks, {.outputs = {loss}, .updates = false});
        for (const Instruction& instruction : forward.instructions) {
          if (instruction.kind != Instruction::Kind::send) continue;
          const Buffer& buffer = forward.buffers[instruction.buffers[0]];
          for (const Axis& axis : g.tensor(buffer.tensor).axes()) CHECK(!axis.reach());
        }
      }
      // Bias and activation join the convolution of windows as they do that of images.
      const auto named = [&](std::string_view name) {
        return std::ranges::count_if(one[0].instructions, [&](const Instruction& instruction) {
          return instruction.kind == Instruction::Kind::task && instruction.spec.op->name == name;
        });
      };
      CHECK(named("conv") == tiles + std::min<std::int64_t>(tiles, 6));
      CHECK(named("relu") == 0);
      CHECK((named("copy_box") > 0) == (tiles > 1));
    }
}
