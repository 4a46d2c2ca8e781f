// Lowering: that listings of any number of ranks fit together, mean the same, and predict their own traffic.
#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

#include "framework/graph/ops.hpp"
#include "layers/layers.hpp"
#include "tests/graph/execution.hpp"

using namespace tegula;
using test::Execution;

namespace {

// A multilayer perceptron with its training step.
struct Network {
  Graph g;
  Axis batch = g.axis("batch", 13), pixel = g.axis("pixel", 6), label = g.axis("label", 5);
  Tensor image = g.input("image", f32, {batch, pixel}), target = g.input("target", i32, {batch});
  layers::Mlp model{g, pixel, {7, 4}, label};
  Tensor logits = model(image), loss = layers::cross_entropy(logits, target);
  Axis hidden1 = *g.find_axis("hidden1"), hidden2 = *g.find_axis("hidden2");

  Network() { layers::adamw(g, loss, model.parameters()); }

  std::vector<Listing> lower_all(const Plan& plan, int ranks) {
    std::vector<Listing> all;
    for (int rank = 0; rank < ranks; ++rank)
      all.push_back(lower(g, plan, rank, ranks, {.outputs = {loss, logits}}));
    return all;
  }
};

template <class T>
T total(const std::vector<Listing>& ranks, T Listing::*member) {
  return std::accumulate(ranks.begin(), ranks.end(), T(0),
                         [&](T sum, const Listing& listing) { return sum + listing.*member; });
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
  Network n;
  std::int64_t parameters = 0;
  for (const Tensor& w : n.model.parameters()) parameters += w.elements();
  for (int ranks = 1; ranks <= 4; ++ranks) {
    // 7 tiles, or 5 for three ranks: what the tree adds up in pairs then lies on one rank.
    const std::int64_t size = ranks == 3 ? 3 : 2;
    Plan plan;
    plan.tile(n.batch, size).tile(n.hidden1, 3).mesh({{"data", ranks}}).shard(n.batch, "data");
    std::vector<Listing> listings;
    for (int rank = 0; rank < ranks; ++rank)
      listings.push_back(lower(n.g, plan, rank, ranks, {.outputs = {n.loss}}));
    // Each tile of a parameter has one owner, which sends it to all others; each other rank sends what its images add to
    // the gradient up the tree, and its sum of losses, a scalar, to rank 0.
    CHECK(total(listings, &Listing::sent_bytes) == (ranks - 1) * (2 * parameters + 1) * 4);
    if (ranks == 2) {  // either sends the parameters that it has, and the gradients of those that it has not
      CHECK(listings[0].sent_bytes == parameters * 4);
      CHECK(listings[1].sent_bytes == (parameters + 1) * 4);
    }
    // Weights, two moments of each: cut and dealt out, none of them twice.
    CHECK(total(listings, &Listing::state_bytes) == 3 * parameters * 4);
  }
}

TEST_CASE("memory comes back: a chain of ops peaks at two tensors, however long") {
  Graph g;
  Axis a = g.axis("a", 100);
  Tensor x = g.input("x", f64, {a});
  for (int i = 0; i < 20; ++i) x = tanh(x);
  const Listing listing = lower(g, {}, 0, 1, {.outputs = {x}});
  CHECK(listing.tasks == 20);
  CHECK(listing.peak_bytes == 2 * 100 * 8);
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
