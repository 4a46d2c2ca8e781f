// Max and average pooling: tiles over images, channels and, by way of halos, places.
#include "kernels/pool.hpp"

#include <cmath>
#include <stdexcept>

#include "framework/graph/halo.hpp"
#include "framework/graph/ops.hpp"

namespace tegula {

namespace {

struct Pool {
  int kernel;
  Window window;
  bool windowed = false;  // x has axes of windows over those of y, and is padded already
};

// Of the task, where x is the operand of this number.
Pool2dShape shape(const Node& node, const TileRange& range, std::size_t x) {
  const auto [kernel, window, windowed] = node.as<Pool>();
  const Axes& axes = node.axes(x);
  const auto extent = [&, reach = Reach{window.stride, kernel}, inside = windowed](const Axis& axis) {
    return static_cast<int>(inside ? reach(range.extent(axis)) : range.extent(axis));
  };
  const int padding = windowed ? 0 : window.padding;
  return {static_cast<int>(range.elements({axes[0], axes[1]})),
          extent(axes[2]),
          extent(axes[3]),
          kernel,
          kernel,
          window.stride,
          window.stride,
          padding,
          padding};
}

// Places of x and y: where the plan cuts them, the op is done on windows.
Axes spatial(const Node& node) {
  Axes all;
  for (const auto* tensors : {&node.inputs, &node.outputs})
    for (const Tensor& tensor : *tensors)
      all.insert(all.end(), tensor.axes().begin() + 2, tensor.axes().end());
  return all;
}

Pool windowed(const Node& node) {
  auto pool = node.as<Pool>();
  pool.windowed = true;
  return pool;
}

Axes windows(const Node& node, const Axes& x, const Axes& y) {
  const auto& [kernel, window, inside] = node.as<Pool>();
  return window_axes(x, y, window.stride, {kernel, kernel});
}

Tensor avg_pool(const Pool& pool, const Tensor& x, const Axes& y);

TaskSpec max_gradient_task(const Node& node, const TileRange& range) {
  return TaskSpec::of(MaxPool2dGrad{shape(node, range, 0)}, node.outputs[0].dtype());
}
TaskSpec max_task(const Node& node, const TileRange& range) {
  return TaskSpec::of(MaxPool2d{shape(node, range, 0)}, node.outputs[0].dtype());
}
TaskSpec avg_gradient_task(const Node& node, const TileRange& range) {
  return TaskSpec::of(AvgPool2dGrad{shape(node, range, 1), true}, node.outputs[0].dtype());
}
TaskSpec avg_task(const Node& node, const TileRange& range) {
  return TaskSpec::of(AvgPool2d{shape(node, range, 0), true}, node.outputs[0].dtype());
}

// The same on windows.
const Semantics max_gradient_on_windows{.name = "max_pool2d_grad", .task = max_gradient_task};
const Semantics max_on_windows{.name = "max_pool2d", .task = max_task};
const Semantics avg_gradient_on_windows{.name = "avg_pool2d_grad", .task = avg_gradient_task};
const Semantics avg_on_windows{.name = "avg_pool2d", .task = avg_task};

// Inputs x, y, dy.
const Semantics max_gradient_semantics{
    .name = "max_pool2d_grad",
    .task = max_gradient_task,
    .gradient = [](const Node&, std::span<const Tensor>) -> std::vector<Tensor> {
      throw std::invalid_argument(
          "[max_pool2d] has no second derivative; use avg_pool2d() where one is needed");
    },
    .whole = spatial,
    .expand = [](const Node& node) -> std::vector<Tensor> {
      const Tensor &x = node.inputs[0], &y = node.inputs[1], &dy = node.inputs[2];
      const Axes among = windows(node, x.axes(), y.axes()), at = beside(x.axes(), y.axes());
      const int padding = node.as<Pool>().window.padding;
      Tensor dx =
          x.graph().emit(max_gradient_on_windows, windowed(node), {halo(x, among, padding, -INFINITY), y, dy},
                         {{x.dtype(), among}}, {at, y.axes(), y.axes(), at})[0];
      return {halo_grad(dx, x.axes(), padding)};
    }};

const Semantics max_semantics{
    .name = "max_pool2d",
    .task = max_task,
    .gradient = [](const Node& node, std::span<const Tensor> outputs) -> std::vector<Tensor> {
      const Tensor &x = node.inputs[0], &y = node.outputs[0];
      Tensor dy = broadcast_to(outputs[0], y.axes());
      return x.graph().emit(max_gradient_semantics, node.as<Pool>(), {x, y, dy}, {{x.dtype(), x.axes()}});
    },
    .whole = spatial,
    .expand = [](const Node& node) -> std::vector<Tensor> {
      const Tensor& x = node.inputs[0];
      const Axes& y = node.outputs[0].axes();
      const Tensor padded =
          halo(x, windows(node, x.axes(), y), node.as<Pool>().window.padding, -INFINITY);  // does not count
      return x.graph().emit(max_on_windows, windowed(node), {padded}, {{x.dtype(), y}},
                            {beside(x.axes(), y), y});
    },
    .example = [](Graph& g) -> std::vector<Tensor> {
      Axis n = g.axis("n", 3), c = g.axis("c", 2), h = g.axis("h", 6), w = g.axis("w", 5);
      Tensor x = g.state("x", f64, {n, c, h, w}, Initializer::normal(0, 1));
      return {max_pool2d(x, 2, {.stride = 2}),
              max_pool2d(x, 3, {.stride = 1, .padding = 1}),
              avg_pool2d(x, 2, {.stride = 2}),
              avg_pool2d(x, 3, {.stride = 2, .padding = 1}),
              max_pool2d(x, 5, {.stride = 1, .padding = 2}),  // over two neighbours
              avg_pool2d(x, 1, {.stride = 3})};               // with places that nothing reads
    }};

const Semantics avg_gradient_semantics{
    .name = "avg_pool2d_grad",
    .task = avg_gradient_task,
    .gradient = [](const Node& node, std::span<const Tensor> outputs) -> std::vector<Tensor> {
      Tensor g = broadcast_to(outputs[0], node.outputs[0].axes());
      return {avg_pool(node.as<Pool>(), g, node.inputs[0].axes())};
    },
    .whole = spatial,
    .expand = [](const Node& node) -> std::vector<Tensor> {
      const Tensor& dy = node.inputs[0];
      const Axes &x = node.outputs[0].axes(), &y = dy.axes();
      Tensor dx = dy.graph().emit(avg_gradient_on_windows, windowed(node), {dy},
                                  {{dy.dtype(), windows(node, x, y)}}, {y, beside(x, y)})[0];
      return {halo_grad(dx, x, node.as<Pool>().window.padding)};
    }};

const Semantics avg_semantics{
    .name = "avg_pool2d",
    .task = avg_task,
    .gradient = [](const Node& node, std::span<const Tensor> outputs) -> std::vector<Tensor> {
      const Tensor& x = node.inputs[0];
      Tensor dy = broadcast_to(outputs[0], node.outputs[0].axes());
      return x.graph().emit(avg_gradient_semantics, node.as<Pool>(), {dy}, {{x.dtype(), x.axes()}});
    },
    .whole = spatial,
    .expand = [](const Node& node) -> std::vector<Tensor> {
      const Tensor& x = node.inputs[0];
      const Axes& y = node.outputs[0].axes();
      const Tensor padded = halo(x, windows(node, x.axes(), y), node.as<Pool>().window.padding);
      return x.graph().emit(avg_on_windows, windowed(node), {padded}, {{x.dtype(), y}},
                            {beside(x.axes(), y), y});
    }};

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
    y.push_back(
        graph.axis(graph.scope() + (i == 2 ? "pool_h" : "pool_w"), room / window.stride + 1, x.axes()[i]));
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
