// Two-dimensional convolution: tiles over images and channels, accumulated over tiles of input channels; its gradients
// are each other's.
#include "kernels/conv2d.hpp"

#include <stdexcept>

#include "framework/graph/epilogue.hpp"
#include "framework/graph/ops.hpp"

namespace tegula {

namespace {

struct Convolution {
  Window window;
  Activation activation = Activation::identity;
  bool done = false;  // nothing can follow in the same task
};

Conv2dShape shape(const Node& node, const TileRange& range, const Tensor& x, const Tensor& weight) {
  Window window = node.as<Convolution>().window;
  auto extent = [&](const Tensor& tensor, int i) { return static_cast<int>(range.extent(tensor.axes()[i])); };
  return {extent(x, 0),      extent(x, 1),      extent(x, 2),      extent(x, 3),
          extent(weight, 0), extent(weight, 2), extent(weight, 3), window.stride,
          window.stride,     window.padding,    window.padding};
}

float beta(const TileRange& range) { return range.first() ? 0 : 1; }

// Height and width of images and kernels: tiles are whole images.
Axes spatial(const Node& node) {
  Axes all;
  for (const auto* tensors : {&node.inputs, &node.outputs})
    for (const Tensor& tensor : *tensors)
      if (tensor && tensor.axes().size() == 4)
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

const Semantics forward_semantics{
    .name = "conv2d",
    .task =
        [](const Node& node, const TileRange& range) {
          const Tensor& y = node.outputs[0];
          Conv2d op{shape(node, range, node.inputs[0], node.inputs[1]), beta(range),
                    range.last() && node.inputs[2],
                    range.last() ? node.as<Convolution>().activation : Activation::identity};
          return TaskSpec::of(op, y.dtype());
        },
    .gradient = [](const Node& node, std::span<const Tensor> outputs) -> std::vector<Tensor> {
      const Tensor &x = node.inputs[0], &weight = node.inputs[1];
      const auto& options = node.as<Convolution>();
      Tensor dy = broadcast_to(outputs[0], node.outputs[0].axes());
      return {
          input_gradient(options, weight, dy, x.axes()), weight_gradient(options, x, dy, weight.axes()), {}};
    },
    .whole = spatial,
    .absorb = absorb_into_convolution,
    .example = [](Graph& g) -> std::vector<Tensor> {
      Axis n = g.axis("n", 3), c = g.axis("c", 2), h = g.axis("h", 5), w = g.axis("w", 4), o = g.axis("o", 3);
      auto normal = Initializer::normal(0, 1);
      Tensor x = g.state("x", f64, {n, c, h, w}, normal);
      Tensor square = g.state("square", f64, {o, c, g.axis("kh", 3), g.axis("kw", 3)}, normal);
      Tensor strided = g.state("strided", f64, {o, c, g.axis("sh", 2), g.axis("sw", 2)}, normal);
      return {conv2d(x, square, {.padding = 1}), conv2d(x, strided, {.stride = 2})};
    }};

const Semantics input_gradient_semantics{
    .name = "conv2d_input_grad",
    .task =
        [](const Node& node, const TileRange& range) {
          const Tensor &weight = node.inputs[0], &dx = node.outputs[0];
          return TaskSpec::of(Conv2dInputGrad{shape(node, range, dx, weight), beta(range)}, dx.dtype());
        },
    .gradient = [](const Node& node, std::span<const Tensor> outputs) -> std::vector<Tensor> {
      const Tensor &weight = node.inputs[0], &dy = node.inputs[1];
      const auto& options = node.as<Convolution>();
      Tensor g = broadcast_to(outputs[0], node.outputs[0].axes());
      return {weight_gradient(options, g, dy, weight.axes()), forward(options, g, weight, dy.axes())};
    },
    .whole = spatial};

const Semantics weight_gradient_semantics{
    .name = "conv2d_weight_grad",
    .task =
        [](const Node& node, const TileRange& range) {
          const Tensor &x = node.inputs[0], &dweight = node.outputs[0];
          return TaskSpec::of(Conv2dWeightGrad{shape(node, range, x, dweight), beta(range)}, x.dtype());
        },
    .gradient = [](const Node& node, std::span<const Tensor> outputs) -> std::vector<Tensor> {
      const Tensor &x = node.inputs[0], &dy = node.inputs[1];
      const auto& options = node.as<Convolution>();
      Tensor g = broadcast_to(outputs[0], node.outputs[0].axes());
      return {input_gradient(options, g, dy, x.axes()), forward(options, x, g, dy.axes())};
    },
    .whole = spatial};

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

}  // namespace

Tensor conv2d(const Tensor& x, const Tensor& weight, Window window) {
  std::string operands = x.describe() + " and " + weight.describe();
  if (x.axes().size() != 4 || weight.axes().size() != 4 || x.dtype() != weight.dtype())
    throw std::invalid_argument(
        "[conv2d] takes (n, c_in, h, w) and (c_out, c_in, kernel_h, kernel_w) of one dtype, got " + operands);
  if (window.stride < 1 || window.padding < 0)
    throw std::invalid_argument("[conv2d] stride must be at least 1 and padding at least 0, got " +
                                std::to_string(window.stride) + " and " + std::to_string(window.padding));
  Graph& graph = x.graph();
  if (x.axes()[1].extent() != weight.axes()[1].extent())
    throw std::invalid_argument("[conv2d] the numbers of input channels differ: " + operands);
  graph.join(x.axes()[1], weight.axes()[1], "conv2d");
  Axes y{x.axes()[0], weight.axes()[0]};
  for (int i : {2, 3}) {
    std::int64_t room = x.axes()[i].extent() + 2 * window.padding - weight.axes()[i].extent();
    if (room < 0)
      throw std::invalid_argument("[conv2d] the kernel is larger than the padded image: " + operands);
    y.push_back(graph.axis(graph.scope() + (i == 2 ? "out_h" : "out_w"), room / window.stride + 1));
  }
  return forward({window}, x, weight, y);
}

}  // namespace tegula
