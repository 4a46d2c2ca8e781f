// Max and average pooling: tiles over images and channels.
#include "kernels/pool.hpp"

#include <stdexcept>

#include "framework/graph/ops.hpp"

namespace tegula {

namespace {

struct Pool {
  int kernel;
  Window window;
};

Pool2dShape shape(const Node& node, const TileRange& range, const Tensor& x) {
  auto [kernel, window] = node.as<Pool>();
  const Axes& axes = x.axes();
  return {static_cast<int>(range.elements({axes[0], axes[1]})),
          static_cast<int>(range.extent(axes[2])),
          static_cast<int>(range.extent(axes[3])),
          kernel,
          kernel,
          window.stride,
          window.stride,
          window.padding,
          window.padding};
}

// Tiles are whole images.
Axes spatial(const Node& node) {
  const Axes &x = node.inputs[0].axes(), &y = node.outputs[0].axes();
  return {x[2], x[3], y[2], y[3]};
}

Tensor avg_pool(const Pool& pool, const Tensor& x, const Axes& y);

const Semantics max_gradient_semantics{
    .name = "max_pool2d_grad",
    .task =
        [](const Node& node, const TileRange& range) {
          return TaskSpec::of(MaxPool2dGrad{shape(node, range, node.inputs[0])}, node.outputs[0].dtype());
        },
    .gradient = [](const Node&, std::span<const Tensor>) -> std::vector<Tensor> {
      throw std::invalid_argument(
          "[max_pool2d] has no second derivative; use avg_pool2d() where one is needed");
    },
    .whole =
        [](const Node& node) {
          const Axes &x = node.inputs[0].axes(), &y = node.inputs[1].axes();
          return Axes{x[2], x[3], y[2], y[3]};
        }};

const Semantics max_semantics{
    .name = "max_pool2d",
    .task =
        [](const Node& node, const TileRange& range) {
          return TaskSpec::of(MaxPool2d{shape(node, range, node.inputs[0])}, node.outputs[0].dtype());
        },
    .gradient = [](const Node& node, std::span<const Tensor> outputs) -> std::vector<Tensor> {
      const Tensor &x = node.inputs[0], &y = node.outputs[0];
      Tensor dy = broadcast_to(outputs[0], y.axes());
      return x.graph().emit(max_gradient_semantics, node.as<Pool>(), {x, y, dy}, {{x.dtype(), x.axes()}});
    },
    .whole = spatial,
    .example = [](Graph& g) -> std::vector<Tensor> {
      Axis n = g.axis("n", 3), c = g.axis("c", 2), h = g.axis("h", 6), w = g.axis("w", 5);
      Tensor x = g.state("x", f64, {n, c, h, w}, Initializer::normal(0, 1));
      return {max_pool2d(x, 2, {.stride = 2}), max_pool2d(x, 3, {.stride = 1, .padding = 1}),
              avg_pool2d(x, 2, {.stride = 2}), avg_pool2d(x, 3, {.stride = 2, .padding = 1})};
    }};

const Semantics avg_gradient_semantics{
    .name = "avg_pool2d_grad",
    .task =
        [](const Node& node, const TileRange& range) {
          return TaskSpec::of(AvgPool2dGrad{shape(node, range, node.outputs[0]), true},
                              node.outputs[0].dtype());
        },
    .gradient = [](const Node& node, std::span<const Tensor> outputs) -> std::vector<Tensor> {
      Tensor g = broadcast_to(outputs[0], node.outputs[0].axes());
      return {avg_pool(node.as<Pool>(), g, node.inputs[0].axes())};
    },
    .whole = spatial};

const Semantics avg_semantics{
    .name = "avg_pool2d",
    .task =
        [](const Node& node, const TileRange& range) {
          return TaskSpec::of(AvgPool2d{shape(node, range, node.inputs[0]), true}, node.outputs[0].dtype());
        },
    .gradient = [](const Node& node, std::span<const Tensor> outputs) -> std::vector<Tensor> {
      const Tensor& x = node.inputs[0];
      Tensor dy = broadcast_to(outputs[0], node.outputs[0].axes());
      return x.graph().emit(avg_gradient_semantics, node.as<Pool>(), {dy}, {{x.dtype(), x.axes()}});
    },
    .whole = spatial};

Tensor avg_pool(const Pool& pool, const Tensor& x, const Axes& y) {
  return x.graph().emit(avg_semantics, pool, {x}, {{x.dtype(), y}})[0];
}

Axes pooled_axes(const char* op, const Tensor& x, int kernel, Window window) {
  std::string name = "[" + std::string(op) + "] ";
  if (x.axes().size() != 4) throw std::invalid_argument(name + "takes (n, c, h, w), got " + x.describe());
  if (kernel < 1 || window.stride < 1 || window.padding < 0 || 2 * window.padding > kernel)
    throw std::invalid_argument(
        name + "needs kernel and stride of at least 1 and a padding of at most half the kernel, got " +
        std::to_string(kernel) + ", " + std::to_string(window.stride) + ", " +
        std::to_string(window.padding));
  Graph& graph = x.graph();
  Axes y{x.axes()[0], x.axes()[1]};
  for (int i : {2, 3}) {
    std::int64_t room = x.axes()[i].extent() + 2 * window.padding - kernel;
    if (room < 0)
      throw std::invalid_argument(name + "the kernel is larger than the padded image: " + x.describe());
    y.push_back(graph.axis(graph.scope() + (i == 2 ? "pool_h" : "pool_w"), room / window.stride + 1));
  }
  return y;
}

const RegisterSemantics registered(max_semantics);

}  // namespace

Tensor max_pool2d(const Tensor& x, int kernel, Window window) {
  Axes y = pooled_axes("max_pool2d", x, kernel, window);
  return x.graph().emit(max_semantics, Pool{kernel, window}, {x}, {{x.dtype(), y}})[0];
}

Tensor avg_pool2d(const Tensor& x, int kernel, Window window) {
  return avg_pool({kernel, window}, x, pooled_axes("avg_pool2d", x, kernel, window));
}

}  // namespace tegula
