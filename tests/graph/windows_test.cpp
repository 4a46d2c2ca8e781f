// Convolution and pooling where the plan cuts places: any tiles of x and of y give what whole images give.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "framework/graph/halo.hpp"
#include "framework/graph/ops.hpp"
#include "framework/program/program.hpp"
#include "tests/graph/derivatives.hpp"
#include "tests/graph/runtime.hpp"

using namespace tegula;
using test::check_close;
using test::runtime;

namespace {

Tensor normal(Graph& graph, const char* name, Axes axes) {
  return graph.state(name, f64, std::move(axes), Initializer::normal(0, 1));
}

// y and the gradients of a function of it that tells its elements apart.
std::vector<Tensor> with_gradients(const Tensor& y, const std::vector<Tensor>& x) {
  std::vector<Tensor> all = gradients(sum(y * y), x);
  all.push_back(y);
  return all;
}

std::vector<std::vector<double>> values(Graph& graph, const Plan& plan, const std::vector<Tensor>& outputs) {
  Result result = compile(graph, plan, runtime(), {.outputs = outputs}).run();
  std::vector<std::vector<double>> all;
  for (const Tensor& output : outputs) all.push_back(result.values(output));
  return all;
}

// Cuts the places of x and y into tiles of these sizes, independently.
void check_tilings(Graph& graph, const Tensor& x, const Tensor& y, const std::vector<Tensor>& outputs,
                   std::initializer_list<std::int64_t> sizes) {
  const auto whole = values(graph, Plan(), outputs);
  for (const std::int64_t of_x : sizes)
    for (const std::int64_t of_y : sizes) {
      Plan plan;
      for (std::size_t i = 2; i < y.axes().size(); ++i) plan.tile(x.axes()[i], of_x).tile(y.axes()[i], of_y);
      CAPTURE(of_x);
      CAPTURE(of_y);
      const auto cut = values(graph, plan, outputs);
      for (std::size_t i = 0; i < outputs.size(); ++i)
        check_close(y.describe() + ", " + outputs[i].describe(), cut[i], whole[i], 1e-13);
    }
}

}  // namespace

TEST_CASE("convolution of cut images gives what whole ones do") {
  struct Case {
    std::int64_t rows, columns;
    Window window;
  };
  for (const auto& [rows, columns, window] : {Case{3, 3, {1, 1}},
                                              {1, 1, {1, 0}},
                                              {2, 1, {3, 0}},     // places that nothing reads
                                              {7, 5, {1, 3}},     // windows over several tiles
                                              {2, 3, {2, 4}},     // whole windows of padding
                                              {9, 8, {1, 0}}}) {  // one window along each axis
    Graph g;
    Axis n = g.axis("n", 2), c = g.axis("c", 2), o = g.axis("o", 3);
    Tensor x = normal(g, "x", {n, c, g.axis("h", 9), g.axis("w", 8)});
    Tensor filter = normal(g, "filter", {o, c, g.axis("rows", rows), g.axis("columns", columns)});
    Tensor bias = normal(g, "bias", {o});
    Tensor y = tanh(conv2d(x, filter, window) + bias);
    check_tilings(g, x, y, with_gradients(y, {x, filter, bias}), {1, 2, 3, 5, 9});
  }
}

TEST_CASE("convolution of cut volumes gives what whole ones do") {
  for (const Window window : {Window{1, 1}, {2, 1}, {3, 0}}) {
    Graph g;
    Axis n = g.axis("n", 2), c = g.axis("c", 2), o = g.axis("o", 3);
    Tensor x = normal(g, "x", {n, c, g.axis("d", 6), g.axis("h", 4), g.axis("w", 5)});
    Tensor filter = normal(g, "filter", {o, c, g.axis("slices", 3), g.axis("rows", 2), g.axis("columns", 2)});
    Tensor y = conv3d(x, filter, window);
    check_tilings(g, x, y, with_gradients(y, {x, filter}), {1, 2, 4, 6});
  }
}

TEST_CASE("a volume of depth 1 is an image") {
  Graph g;
  Axis n = g.axis("n", 2), c = g.axis("c", 3), h = g.axis("h", 6), w = g.axis("w", 5), o = g.axis("o", 4),
       rows = g.axis("rows", 3), columns = g.axis("columns", 2);
  Tensor image = normal(g, "image", {n, c, h, w}), filter = normal(g, "filter", {o, c, rows, columns});
  Tensor volume = broadcast_to(image, {n, c, g.axis("depth", 1), h, w});
  Tensor y = conv2d(image, filter, {.stride = 2});
  Tensor z = conv3d(volume, broadcast_to(filter, {o, c, g.axis("slices", 1), rows, columns}), {.stride = 2});
  const auto both = values(g, Plan(), {y, z});
  CHECK(both[0] == both[1]);
}

TEST_CASE("pooling of cut images gives what whole ones do, ties and averaged padding included") {
  for (const auto& [kernel, window] :
       {std::pair(2, Window{2, 0}), {3, {1, 1}}, {3, {2, 1}}, {2, {3, 1}}, {5, {1, 2}}}) {
    Graph g;
    Axis n = g.axis("n", 2), c = g.axis("c", 3), h = g.axis("h", 7), w = g.axis("w", 6);
    Tensor x = normal(g, "x", {n, c, h, w});
    Tensor average = avg_pool2d(x, kernel, window), most = max_pool2d(x, kernel, window);
    // All elements of a row are equal, so that windows have several maxima, of which the first counts.
    Tensor equal = broadcast_to(normal(g, "row", {n, c, h}), {n, c, h, w}),
           tied = max_pool2d(equal, kernel, window);
    check_tilings(g, x, average, with_gradients(average, {x}), {1, 2, 3, 7});
    check_tilings(g, x, most, with_gradients(most, {x}), {1, 2, 3, 7});
    check_tilings(g, equal, tied, with_gradients(tied, {equal}), {1, 2, 3, 7});
  }
}

TEST_CASE("windows side by side are tiles of x, which nothing copies") {
  Graph g;
  Axis n = g.axis("n", 2), c = g.axis("c", 3), h = g.axis("h", 8), w = g.axis("w", 6), o = g.axis("o", 2);
  Tensor x = normal(g, "x", {n, c, h, w});
  Tensor filter = normal(g, "filter", {o, c, g.axis("rows", 1), g.axis("columns", 1)});
  Tensor y = conv2d(x, filter), most = max_pool2d(y, 2, {.stride = 2}),
         z = avg_pool2d(tanh(y), 2, {.stride = 2});
  std::vector<Tensor> outputs = with_gradients(most * z, {x, filter});
  const auto whole = values(g, Plan(), outputs);
  for (const std::int64_t size : {2, 4}) {
    // What is made of y is cut alike, or so that windows do not match its tiles.
    for (const std::int64_t pooled : {size / 2, std::int64_t{3}}) {
      Plan plan;
      for (int i : {2, 3}) {
        plan.tile(x.axes()[i], size).tile(y.axes()[i], size);
        plan.tile(most.axes()[i], pooled).tile(z.axes()[i], pooled);
      }
      for (const bool fuse : {true, false}) {
        const auto cut = values(g, plan.fuse(fuse), outputs);
        for (std::size_t i = 0; i < outputs.size(); ++i)
          check_close(outputs[i].describe(), cut[i], whole[i], 1e-13);
        const Program program = compile(g, plan, runtime(), {.outputs = outputs});
        const auto copies = std::ranges::count_if(program.listing().instructions, [](const Instruction& i) {
          return i.spec.op && i.spec.op->name == "copy_box";
        });
        CHECK((copies == 0) == (fuse && pooled != 3));
      }
    }
  }
}

TEST_CASE("half precision is cut in places, too") {
  Graph g;
  Axis n = g.axis("n", 2), c = g.axis("c", 2), h = g.axis("h", 7), w = g.axis("w", 6), o = g.axis("o", 3);
  Tensor x = normal(g, "x", {n, c, h, w});
  Tensor filter = normal(g, "filter", {o, c, g.axis("rows", 3), g.axis("columns", 3)});
  for (DType dtype : {f32, DType::bf16, DType::f16}) {
    Tensor y = max_pool2d(conv2d(cast(x, dtype), cast(filter, dtype), {.padding = 1}), 3,
                          {.stride = 2, .padding = 1});
    const std::vector<Tensor> outputs = with_gradients(cast(y, f64), {x, filter});
    const auto whole = values(g, Plan(), outputs), cut = values(g, Plan().tile(h, 3).tile(w, 2), outputs);
    for (std::size_t i = 0; i < outputs.size(); ++i)
      check_close(outputs[i].describe(), cut[i], whole[i], dtype == f32 ? 1e-5 : 3e-2);
  }
}

TEST_CASE("halo() says what it takes") {
  Graph g;
  Axis n = g.axis("n", 2), h = g.axis("h", 7), w = g.axis("w", 6);
  Tensor x = normal(g, "x", {n, h});
  CHECK_THROWS_WITH_AS(halo(x, {n, w}, 1), doctest::Contains("[halo] takes up to 5 axes"),
                       std::invalid_argument);
  CHECK_THROWS_WITH_AS(halo_grad(x, {n, w}, 1), doctest::Contains("[halo_grad] takes"),
                       std::invalid_argument);
  CHECK(g.window(w, {2, 3}) == g.window(w, {2, 3}));
  CHECK(g.window(w, {2, 3}) != g.window(w, {1, 3}));
  CHECK(g.window(w, {2, 3}).extent() == 5 * 2 + 3);
  CHECK(g.axes() == std::vector<Axis>{n, h, w});  // windows are not for plans
}
