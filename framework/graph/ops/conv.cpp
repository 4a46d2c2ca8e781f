// Convolution in two and three dimensions: tiles over images, channels and, by way of halos, places, accumulated over tiles of
// input channels; its gradients are each other's.
#include "kernels/conv.hpp"

#include <stdexcept>

#include "framework/graph/epilogue.hpp"
#include "framework/graph/halo.hpp"
#include "framework/graph/ops.hpp"

namespace tegula {

namespace {

struct Convolution {
  Window window;
  bool windowed = false;  // x has axes of windows over those of y, and is padded already
  Activation activation = Activation::identity;
  bool done = false;  // nothing can follow in the same task
};

// Of the task, where x and weight are operands of these numbers. An image is a volume of depth 1.
ConvShape shape(const Node& node, const TileRange& range, std::size_t x, std::size_t weight) {
  const auto& [window, windowed, activation, done] = node.as<Convolution>();
  const Axes &places = node.axes(x), &filters = node.axes(weight);
  const bool flat = places.size() == 4;
  // Of the i-th of depth, height and width.
  const auto kernel = [&](int i) {
    return flat && i == 0 ? 1 : static_cast<int>(range.extent(filters[flat ? i + 1 : i + 2]));
  };
  const auto extent = [&](int i) {
    if (flat && i == 0) return 1;
    const std::int64_t n = range.extent(places[flat ? i + 1 : i + 2]);
    return static_cast<int>(windowed ? Reach{window.stride, kernel(i)}(n) : n);
  };
  const auto number = [&](const Axis& axis) { return static_cast<int>(range.extent(axis)); };
  const int padding = windowed ? 0 : window.padding;
  return {number(places[0]),  number(places[1]), extent(0),          extent(1), extent(2),
          number(filters[0]), kernel(0),         kernel(1),          kernel(2), flat ? 1 : window.stride,
          window.stride,      window.stride,     flat ? 0 : padding, padding,   padding};
}

float beta(const TileRange& range) { return range.first() ? 0 : 1; }

Axes kernel_axes(const Tensor& weight) { return Axes(weight.axes().begin() + 2, weight.axes().end()); }

std::vector<std::int64_t> kernel_extents(const Tensor& weight) {
  std::vector<std::int64_t> all;
  for (const Axis& axis : kernel_axes(weight)) all.push_back(axis.extent());
  return all;
}

// Places of images and of kernels: where the plan cuts those of images, the op is done on windows.
Axes spatial(const Node& node) {
  Axes all;
  for (const auto* tensors : {&node.inputs, &node.outputs})
    for (const Tensor& tensor : *tensors)
      if (tensor && tensor.axes().size() >= 4)
        all.insert(all.end(), tensor.axes().begin() + 2, tensor.axes().end());
  return all;
}

Tensor input_gradient(const Convolution& options, const Tensor& weight, const Tensor& dy, const Axes& x);
Tensor weight_gradient(const Convolution& options, const Tensor& x, const Tensor& dy, const Axes& weight);
Tensor forward(const Convolution& options, const Tensor& x, const Tensor& weight, const Axes& y);

bool absorb_into_convolution(Node& node, const Node& user) {
  auto options = node.as<Convolution>();
  const Tensor y = node.outputs[0];
  if (options.done) return false;
  if (Tensor bias = epilogue::bias(user, y)) {
    if (node.inputs[2] || bias.axes() != Axes{y.axes()[1]}) return false;
    node.inputs[2] = bias;
  } else if (auto activation = epilogue::activation(user)) {
    options.activation = *activation;
    options.done = true;
  } else {
    return false;
  }
  node.attributes = options;
  node.outputs = user.outputs;
  return true;
}

TaskSpec forward_task(const Node& node, const TileRange& range) {
  const bool last = range.last();
  Conv op{shape(node, range, 0, 1), beta(range), last && node.inputs[2],
          last ? node.as<Convolution>().activation : Activation::identity};
  return TaskSpec::of(op, node.outputs[0].dtype());
}
TaskSpec input_gradient_task(const Node& node, const TileRange& range) {
  return TaskSpec::of(ConvInputGrad{shape(node, range, 2, 0), beta(range)}, node.outputs[0].dtype());
}
TaskSpec weight_gradient_task(const Node& node, const TileRange& range) {
  return TaskSpec::of(ConvWeightGrad{shape(node, range, 0, 2), beta(range)}, node.outputs[0].dtype());
}

// The same on windows.
const Semantics forward_on_windows{.name = "conv",
                                   .task = forward_task,
                                   .whole = [](const Node& node) { return kernel_axes(node.inputs[1]); },
                                   .absorb = absorb_into_convolution};
const Semantics input_gradient_on_windows{
    .name = "conv_input_grad", .task = input_gradient_task, .whole = [](const Node& node) {
      return kernel_axes(node.inputs[0]);
    }};
const Semantics weight_gradient_on_windows{
    .name = "conv_weight_grad", .task = weight_gradient_task, .whole = [](const Node& node) {
      return kernel_axes(node.outputs[0]);
    }};

Convolution windowed(const Node& node) {
  auto options = node.as<Convolution>();
  options.windowed = true;
  return options;
}

// x in windows for outputs y.
Tensor windows_of(const Node& node, const Tensor& x, const Tensor& weight, const Axes& y) {
  const Window& window = node.as<Convolution>().window;
  return halo(x, window_axes(x.axes(), y, window.stride, kernel_extents(weight)), window.padding);
}

std::vector<Tensor> convolution_example(Graph& g) {
  Axis n = g.axis("n", 3), c = g.axis("c", 2), h = g.axis("h", 5), w = g.axis("w", 4), o = g.axis("o", 3);
  auto normal = Initializer::normal(0, 1);
  Tensor x = g.state("x", f64, {n, c, h, w}, normal);
  auto filter = [&](const char* name, std::int64_t rows, std::int64_t cols) {
    return g.state(name, f64, {o, c, g.axis("kh", rows), g.axis("kw", cols)}, normal);
  };
  Tensor square = filter("square", 3, 3), strided = filter("strided", 2, 2), wide = filter("wide", 5, 4),
         point = filter("point", 1, 1);
  Tensor volume = g.state("volume", f64, {g.axis("m", 2), c, g.axis("d", 3), h, w}, normal);
  Tensor cube = g.state("cube", f64, {o, c, g.axis("kd", 2), g.axis("ka", 3), g.axis("kb", 2)}, normal);
  return {conv2d(x, square, {.padding = 1}),    conv2d(x, strided, {.stride = 2}),
          conv2d(x, wide, {.padding = 2}),  // over two neighbours
          conv2d(x, point, {.stride = 3}),  // with places that nothing reads
          conv3d(volume, cube, {.padding = 1}), conv3d(volume, cube, {.stride = 2, .padding = 1})};
}

const Semantics forward_semantics{
    .name = "conv",
    .task = forward_task,
    .gradient = [](const Node& node, std::span<const Tensor> outputs) -> std::vector<Tensor> {
      const Tensor &x = node.inputs[0], &weight = node.inputs[1];
      const auto& options = node.as<Convolution>();
      Tensor dy = broadcast_to(outputs[0], node.outputs[0].axes());
      return {
          input_gradient(options, weight, dy, x.axes()), weight_gradient(options, x, dy, weight.axes()), {}};
    },
    .whole = spatial,
    .expand = [](const Node& node) -> std::vector<Tensor> {
      const Tensor &x = node.inputs[0], &weight = node.inputs[1];
      const Axes& y = node.outputs[0].axes();
      return x.graph().emit(forward_on_windows, windowed(node),
                            {windows_of(node, x, weight, y), weight, node.inputs[2]}, {{x.dtype(), y}},
                            {beside(x.axes(), y), weight.axes(), {y[1]}, y});
    },
    .absorb = absorb_into_convolution,
    .example = convolution_example};

const Semantics input_gradient_semantics{
    .name = "conv_input_grad",
    .task = input_gradient_task,
    .gradient = [](const Node& node, std::span<const Tensor> outputs) -> std::vector<Tensor> {
      const Tensor &weight = node.inputs[0], &dy = node.inputs[1];
      const auto& options = node.as<Convolution>();
      Tensor g = broadcast_to(outputs[0], node.outputs[0].axes());
      return {weight_gradient(options, g, dy, weight.axes()), forward(options, g, weight, dy.axes())};
    },
    .whole = spatial,
    .expand = [](const Node& node) -> std::vector<Tensor> {
      const Tensor &weight = node.inputs[0], &dy = node.inputs[1];
      const Axes &x = node.outputs[0].axes(), &y = dy.axes();
      const auto options = windowed(node);
      const Axes windows = window_axes(x, y, options.window.stride, kernel_extents(weight));
      Tensor dx = dy.graph().emit(input_gradient_on_windows, options, {weight, dy}, {{dy.dtype(), windows}},
                                  {weight.axes(), y, beside(x, y)})[0];
      return {halo_grad(dx, x, options.window.padding)};
    }};

const Semantics weight_gradient_semantics{
    .name = "conv_weight_grad",
    .task = weight_gradient_task,
    .gradient = [](const Node& node, std::span<const Tensor> outputs) -> std::vector<Tensor> {
      const Tensor &x = node.inputs[0], &dy = node.inputs[1];
      const auto& options = node.as<Convolution>();
      Tensor g = broadcast_to(outputs[0], node.outputs[0].axes());
      return {input_gradient(options, g, dy, x.axes()), forward(options, x, g, dy.axes())};
    },
    .whole = spatial,
    .expand = [](const Node& node) -> std::vector<Tensor> {
      const Tensor &x = node.inputs[0], &dy = node.inputs[1], &dweight = node.outputs[0];
      const Axes& y = dy.axes();
      return x.graph().emit(weight_gradient_on_windows, windowed(node), {windows_of(node, x, dweight, y), dy},
                            {{x.dtype(), dweight.axes()}}, {beside(x.axes(), y), y, dweight.axes()});
    }};

Tensor forward(const Convolution& options, const Tensor& x, const Tensor& weight, const Axes& y) {
  return x.graph().emit(forward_semantics, Convolution{options.window}, {x, weight, {}}, {{x.dtype(), y}})[0];
}
Tensor input_gradient(const Convolution& options, const Tensor& weight, const Tensor& dy, const Axes& x) {
  return dy.graph().emit(input_gradient_semantics, Convolution{options.window}, {weight, dy},
                         {{dy.dtype(), x}})[0];
}
Tensor weight_gradient(const Convolution& options, const Tensor& x, const Tensor& dy, const Axes& weight) {
  return x.graph().emit(weight_gradient_semantics, Convolution{options.window}, {x, dy},
                        {{x.dtype(), weight}})[0];
}

const RegisterSemantics registered(forward_semantics);

// `names` are of the axes of places, outermost first.
Tensor convolve(const std::string& op, const std::vector<std::string>& names, const Tensor& x,
                const Tensor& weight, Window window) {
  const std::string who = "[" + op + "] ", operands = x.describe() + " and " + weight.describe();
  std::string places, kernels;
  for (const std::string& name : names) places += ", " + name, kernels += ", kernel_" + name;
  if (x.axes().size() != names.size() + 2 || weight.axes().size() != names.size() + 2 ||
      x.dtype() != weight.dtype())
    throw std::invalid_argument(who + "takes (n, c_in" + places + ") and (c_out, c_in" + kernels +
                                ") of one dtype, got " + operands);
  if (window.stride < 1 || window.padding < 0)
    throw std::invalid_argument(who + "stride must be at least 1 and padding at least 0, got " +
                                std::to_string(window.stride) + " and " + std::to_string(window.padding));
  Graph& graph = x.graph();
  if (x.axes()[1].extent() != weight.axes()[1].extent())
    throw std::invalid_argument(who + "the numbers of input channels differ: " + operands);
  graph.join(x.axes()[1], weight.axes()[1], op);
  Axes y{x.axes()[0], weight.axes()[0]};
  for (std::size_t i = 2; i < x.axes().size(); ++i) {
    const std::int64_t room = x.axes()[i].extent() + 2 * window.padding - weight.axes()[i].extent();
    if (room < 0)
      throw std::invalid_argument(who + "the kernel is larger than the padded image: " + operands);
    y.push_back(graph.axis(graph.scope() + "out_" + names[i - 2], room / window.stride + 1, x.axes()[i]));
  }
  return forward({window}, x, weight, y);
}

}  // namespace

Tensor conv2d(const Tensor& x, const Tensor& weight, Window window) {
  return convolve("conv2d", {"h", "w"}, x, weight, window);
}

Tensor conv3d(const Tensor& x, const Tensor& weight, Window window) {
  return convolve("conv3d", {"d", "h", "w"}, x, weight, window);
}

}  // namespace tegula
