// What programs compute: in lower precision, and with and without fusion.
#include <doctest/doctest.h>

#include "framework/graph/ops.hpp"
#include "framework/program/program.hpp"
#include "layers/layers.hpp"
#include "tests/graph/derivatives.hpp"
#include "tests/graph/runtime.hpp"

using namespace tegula;
using test::check_close;
using test::runtime;

namespace {

std::vector<Tensor> network(const Tensor& x, const Tensor& w, const Tensor& b) {
  Tensor h = matmul(x, w) + b;
  return {h,
          gelu(h),
          softmax(h),
          log_sum_exp(h, {h.axes()[0]}),
          mean(h),
          max(h, {h.axes()[1]}),
          permute(h, {h.axes()[1], h.axes()[0]})};
}

}  // namespace

TEST_CASE("f32, bf16 and f16 compute what f64 does, up to their rounding") {
  Graph g;
  Axis i = g.axis("i", 9), k = g.axis("k", 6), j = g.axis("j", 5);
  auto normal = Initializer::normal(0, 1);
  Tensor x = g.state("x", f64, {i, k}, normal), w = g.state("w", f64, {k, j}, normal),
         b = g.state("b", f64, {j}, normal);
  std::vector<Tensor> outputs, expected;
  for (DType dtype : {f32, DType::bf16, DType::f16}) {
    auto rounded = [&](const Tensor& t) { return cast(t, dtype); };
    for (const Tensor& y : network(rounded(x), rounded(w), rounded(b))) outputs.push_back(y);
    auto exact = [&](const Tensor& t) { return cast(cast(t, dtype), f64); };
    for (const Tensor& y : network(exact(x), exact(w), exact(b))) expected.push_back(y);
  }
  std::vector<Tensor> all = outputs;
  all.insert(all.end(), expected.begin(), expected.end());
  for (const Plan& plan : {Plan(), Plan().tile(i, 4).tile(j, 2).tile(k, 4)}) {
    Program program = compile(g, plan, runtime(), {.outputs = all});
    Result result = program.run();
    for (std::size_t n = 0; n < outputs.size(); ++n)
      check_close(outputs[n].describe(), result.values(outputs[n]), result.values(expected[n]),
                  outputs[n].dtype() == f32 ? 2e-6 : 3e-2);
  }
}

TEST_CASE("one_hot, fill and cast give exactly what they should") {
  Graph g;
  Axis i = g.axis("i", 3), j = g.axis("j", 4);
  Tensor target = g.input("target", i32, {i});
  Tensor hot = one_hot(target, j, f32), three = fill(g, 3, {j}, f64), number = cast(target, f32);
  Program program = compile(g, Plan().tile(i, 2).tile(j, 3), runtime(), {.outputs = {hot, three, number}});
  Result result = program.bind(target, std::vector<std::int32_t>{3, 0, 2}).run();
  CHECK(result.values(hot) == std::vector<double>{0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 1, 0});
  CHECK(result.values(three) == std::vector<double>(4, 3));
  CHECK(result.values(number) == std::vector<double>{3, 0, 2});
}

TEST_CASE("fusion saves tasks and changes values by no more than rounding") {
  Graph g;
  Axis batch = g.axis("batch", 7), in = g.axis("in", 5), label = g.axis("label", 3);
  Tensor x = g.state("x", f64, {batch, in}, Initializer::normal(0, 1));
  Tensor target = g.state("target", i32, {batch}, Initializer::fill(1));
  layers::Mlp model(g, in, {6, 4}, label, f64);
  Tensor logits = model(x), loss = layers::cross_entropy(logits, target);
  std::vector<Tensor> outputs = gradients(loss, model.parameters());
  outputs.push_back(loss);
  outputs.push_back(logits);
  for (int group : {1, 2, 100}) {
    Plan plan;
    for (const Axis& axis : g.axes()) plan.tile(axis, 2).group(axis, group);
    Program fused = compile(g, plan, runtime(), {.outputs = outputs});
    Program plain = compile(g, plan.fuse(false), runtime(), {.outputs = outputs});
    CHECK((fused.listing().tasks < plain.listing().tasks) == (group > 1));
    Result of_fused = fused.run(), of_plain = plain.run();
    for (const Tensor& output : outputs)
      check_close(output.describe(), of_fused.values(output), of_plain.values(output), 1e-12);
  }
}
