// Plans of which the literature says what they send, with what it says: for the listings of all ranks (tests/graph) and for the
// bytes that StarPU counts in a job (counted_bytes.cpp).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "framework/graph/ops.hpp"
#include "framework/plan/plans.hpp"
#include "framework/program/listing.hpp"
#include "layers/layers.hpp"

namespace tegula::test {

// What is sent in a step under a plan.
struct ClosedForm {
  std::string name;
  Plan plan;
  CompileOptions options;
  std::int64_t bytes;                         // by all ranks together
  std::vector<std::int64_t> rank_bytes = {};  // by each rank; empty where the literature has the sum only
};

inline std::int64_t bytes_of(const Tensor& x) { return x.elements() * size_of(x.dtype()); }

// A multilayer perceptron with its training step.
struct Perceptron {
  Graph g;
  Axis batch, pixel = g.axis("pixel", 6), label = g.axis("label", 5);
  Tensor image, target;
  layers::Mlp model;
  Tensor logits, loss;

  explicit Perceptron(std::int64_t images = 13, const std::vector<std::int64_t>& hidden = {7, 4})
      : batch(g.axis("batch", images)),
        image(g.input("image", f32, {batch, pixel})),
        target(g.input("target", i32, {batch})),
        model(g, pixel, hidden, label),
        logits(model(image)),
        loss(layers::cross_entropy(logits, target)) {
    layers::adamw(g, loss, model.parameters());
  }
  Axis hidden(int layer) { return g.find_axis("hidden" + std::to_string(layer)).value(); }
  std::int64_t parameter_bytes() const {
    std::int64_t all = 0;
    for (const Tensor& w : model.parameters()) all += bytes_of(w);
    return all;
  }
};

// Data parallelism: each of N ranks moves 2 (N - 1) / N of the parameters, as a ring does that scatters sums and gathers results
// (Patarasuk and Yuan 2009; Rajbhandari et al. 2020, ZeRO). Each tile of a parameter has one owner, which sends it to all others;
// each other rank sends what its images add to the gradient up the tree, and its sum of losses, a scalar, to rank 0.
inline ClosedForm data_parallel(Perceptron& n, int ranks, std::int64_t tile) {
  Plan plan;
  plan.tile(n.batch, tile).tile(n.hidden(1), 3).mesh({{"data", ranks}}).shard(n.batch, "data");
  const std::int64_t parameters = n.parameter_bytes();
  ClosedForm form{.name = "data parallel",
                  .plan = plan,
                  .options = {.outputs = {n.loss}},
                  .bytes = (ranks - 1) * (2 * parameters + bytes_of(n.loss))};
  if (ranks == 2)  // either sends the parameters that it has, and the gradients of those that it has not
    form.rank_bytes = {parameters, parameters + bytes_of(n.loss)};
  return form;
}

// A pipeline: activations go on and their gradients come back, nothing else (Huang et al. 2019, GPipe); outputs are wanted on
// rank 0. Of a perceptron with one layer less hidden than there are stages.
inline ClosedForm pipeline(Perceptron& n, int stages, const std::string& schedule) {
  std::vector<std::pair<std::string, int>> layers;
  for (int s = 0; s < stages; ++s) layers.emplace_back("linear" + std::to_string(s + 1), s);
  layers.emplace_back("loss", stages - 1);
  ClosedForm form{.name = "pipeline, " + schedule,
                  .plan = Plan()
                              .tile(n.batch, 2)
                              .mesh({{"stage", stages}})
                              .stages("stage", layers)
                              .micro_batches(n.batch, schedules::find(schedule)),
                  .options = {.outputs = {n.loss, n.logits}},
                  .bytes = 0,
                  .rank_bytes = std::vector<std::int64_t>(stages, 0)};
  for (int s = 0; s + 1 < stages; ++s) {
    const std::int64_t boundary = n.batch.extent() * n.hidden(s + 1).extent() * size_of(f32);
    form.rank_bytes[s] += boundary;
    form.rank_bytes[s + 1] += boundary;
  }
  if (stages > 1) form.rank_bytes[stages - 1] += bytes_of(n.loss) + bytes_of(n.logits);
  for (const std::int64_t bytes : form.rank_bytes) form.bytes += bytes;
  return form;
}

// y = tanh(x) w1, z = y w2, whose axes are cut evenly, and its training step.
struct TwoProducts {
  Graph g;
  Axis batch = g.axis("batch", 24), embed = g.axis("embed", 36), hidden = g.axis("hidden", 24),
       out = g.axis("out", 72);
  Tensor x = g.input("x", f32, {batch, embed}),
         w1 = g.state("w1", f32, {hidden, embed}, Initializer::uniform(-1, 1)),
         w2 = g.state("w2", f32, {out, hidden}, Initializer::uniform(-1, 1));
  Tensor a = tanh(x), y = contract(a, w1, {batch, hidden}), z = second();
  Tensor loss = mean(tanh(z));

  TwoProducts() { layers::sgd(g, loss, {w1, w2}); }

  // Columns, then rows (Shoeybi et al. 2019, Megatron-LM): a goes to all, sums of z come from all, nothing moves between.
  ClosedForm in_1d(int p) {
    Plan plan;
    plan.tile(hidden, hidden.extent() / p).group(hidden, 1).mesh({{"tensor", p}}).shard(hidden, "tensor");
    return forward("1-D", plan, p, (p - 1) * (bytes_of(a) + bytes_of(z)));
  }

  // SUMMA (van de Geijn and Watts 1997; Xu et al. 2021): tiles of both factors go along rows and columns of the mesh, each to
  // q - 1 others, results stay. 2.5-D (Solomonik and Demmel 2011; Wang et al. 2022, Tesseract): `depth` such squares with a part
  // of the batch each. Weights are owned once and reach the others.
  // The hidden axis lies along the columns in w1 and along the rows in w2.
  ClosedForm in_2d(int q, int depth = 1) {
    Plan plan = cut(q, q * depth);
    if (depth == 1)
      plan.mesh({{"row", q}, {"column", q}}).shard(batch, "row");
    else
      plan.mesh({{"depth", depth}, {"row", q}, {"column", q}}).shard(batch, {"depth", "row"});
    for (const Axis& axis : {embed, hidden, out}) plan.shard(axis, "column", Placed::activations);
    plan.shard(embed, "row", Placed::parameters)
        .shard(hidden, "column", Placed::parameters)
        .shard(out, "column", Placed::parameters)
        .shard_within("second", hidden, {"row"}, Placed::parameters);
    const int rows = depth * q;
    return forward(depth == 1 ? "SUMMA" : "2.5-D", plan, rows * q,
                   (q - 1) * (bytes_of(a) + bytes_of(y)) + (rows - 1) * (bytes_of(w1) + bytes_of(w2)));
  }

  // 3-D (Agarwal et al. 1995; Bian et al. 2021): every factor and every sum goes to or comes from q - 1 others; y is both.
  ClosedForm in_3d(int q) {
    Plan plan = cut(q, q);
    plan.mesh({{"x", q}, {"y", q}, {"z", q}}).shard(batch, "x").shard(hidden, "y");
    plan.shard(embed, "z").shard(out, "z");
    return forward("3-D", plan, q * q * q,
                   (q - 1) * (bytes_of(a) + bytes_of(w1) + 2 * bytes_of(y) + bytes_of(w2) + bytes_of(z)));
  }

 private:
  Tensor second() {
    const Graph::Scope scope(g, "second");
    return contract(y, w2, {batch, out});
  }
  Plan cut(int columns, int rows) const {
    Plan plan;
    plan.tile(batch, batch.extent() / rows);
    for (const Axis& axis : {embed, hidden, out}) plan.tile(axis, axis.extent() / columns).group(axis, 1);
    return plan;
  }
  // Going forward to z, which rank 0 gets from those that have it.
  ClosedForm forward(std::string name, Plan plan, int ranks, std::int64_t sent) {
    const Layout layout(g, plan, ranks, {});
    for (std::int64_t tile = 0; tile < layout.tiles(z.axes()); ++tile)
      if (layout.owner(z, tile) != 0) sent += bytes_of(z) / layout.tiles(z.axes());
    return {.name = std::move(name),
            .plan = std::move(plan),
            .options = {.outputs = {z}, .updates = false},
            .bytes = sent};
  }
};

// Two convolutions of windows of kernel x kernel, padded so that images keep their size, with their training step.
struct TwoConvolutions {
  int kernel;
  Graph g;
  Axis batch = g.axis("batch", 2), color = g.axis("color", 1), height = g.axis("height", 24),
       map1 = g.axis("map1", 3), map2 = g.axis("map2", 4);
  Tensor image = g.input("image", f32, {batch, color, height, g.axis("width", 10)});
  layers::Conv2d first{g, "conv1", color, map1, kernel, {.padding = kernel / 2}},
      second{g, "conv2", map1, map2, kernel, {.padding = kernel / 2}};
  Tensor hidden = relu(first(image)), loss = mean(second(hidden));

  explicit TwoConvolutions(int k) : kernel(k) { layers::sgd(g, loss, parameters()); }

  // Height cut over ranks. Of each boundary between two of them go, forward, (kernel - 1) / 2 rows of what the second convolution
  // reads in either direction, and backward as many of its gradient (Dryden et al. 2019, "Improving strong-scaling of CNN training
  // by exploiting finer-grained parallelism", III-A); the image is read where it is needed. Parameters as in data parallelism.
  ClosedForm in_space(int ranks) {
    std::int64_t weights = 0;
    for (const Tensor& w : parameters()) weights += bytes_of(w);
    return {.name = "spatial, kernel " + std::to_string(kernel),
            .plan = plans::spatial(g, height, height.extent() / ranks, ranks),
            .options = {.outputs = {loss}},
            .bytes = (ranks - 1) * (2 * weights + bytes_of(loss)) + 2 * exchanged(ranks)};
  }
  std::int64_t exchanged(int ranks) const {  // in one direction of the step
    const std::int64_t row = bytes_of(hidden) / height.extent();
    return 2 * (ranks - 1) * (kernel / 2) * row;
  }

 private:
  layers::Parameters parameters() const {
    layers::Parameters all = first.parameters();
    for (const Tensor& w : second.parameters()) all.push_back(w);
    return all;
  }
};

}  // namespace tegula::test
