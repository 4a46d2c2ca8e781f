// Halos: tiles of windows put together from the tiles of x that they overlap, in a chain over those, and back.
#include "framework/graph/halo.hpp"

#include <algorithm>
#include <stdexcept>

#include "framework/graph/ops.hpp"

namespace tegula {

namespace {

// The place in x, negative within the padding, of the first element of a tile of windows.
std::int64_t begin_in_x(const Axis& windows, int padding, const TileRange& range) {
  const auto [stride, kernel] = *windows.reach();
  const std::int64_t tile = range.tile(windows);
  if (tile == 0) return -padding;
  const std::int64_t before = range.begin(windows) / tile;      // elements of each tile before it,
  const std::int64_t outputs = (before - kernel) / stride + 1;  // which are of so many outputs
  return tile * outputs * stride - padding;
}

TaskSpec task(const Node& node, const TileRange& range) {
  const auto& options = node.as<Halo>();
  Box b = box(node, range);
  if (range.has_part()) b.src_begin = {};
  const auto extents = [&](const Tensor& tensor) {
    CopyBox::Index all;
    all.fill(1);
    const Axes& axes = tensor.axes();
    for (std::size_t i = 0; i < axes.size(); ++i)
      all[all.size() - axes.size() + i] = static_cast<std::int32_t>(range.extent(axes[i]));
    return all;
  };
  const auto mode = range.first()  ? CopyBox::Mode::fill
                    : options.back ? CopyBox::Mode::add
                                   : CopyBox::Mode::keep;
  return TaskSpec::of(CopyBox{range.has_part() ? b.extent : extents(node.inputs[0]), extents(node.outputs[0]),
                              b.src_begin, b.dst_begin, b.extent, mode, static_cast<float>(options.value)},
                      node.outputs[0].dtype());
}

bool skip(const Node& node, const TileRange& range) { return box(node, range).empty(); }

TileRegion part(const Node& node, const TileRange& range) {
  const Box b = box(node, range);
  const auto tail = static_cast<std::ptrdiff_t>(node.inputs[0].axes().size());
  return {{b.src_begin.end() - tail, b.src_begin.end()}, {b.extent.end() - tail, b.extent.end()}};
}

std::vector<Tensor> gradient(const Node& node, std::span<const Tensor> outputs) {
  const Axes &from = node.inputs[0].axes(), &to = node.outputs[0].axes();
  const auto& options = node.as<Halo>();
  const Tensor g = broadcast_to(outputs[0], to);
  return {options.back ? halo(g, from, options.padding) : halo_grad(g, from, options.padding)};
}

const Semantics gradient_semantics{
    .name = "halo_grad", .task = task, .gradient = gradient, .chain = true, .skip = skip, .part = part};

// Windows side by side, since how often overlapping ones have an element is for the tiles to say; those are in the examples
// of convolution and pooling.
std::vector<Tensor> example(Graph& g) {
  Axis n = g.axis("n", 2), h = g.axis("h", 9), w = g.axis("w", 5), rows = g.axis("rows", 3),
       cols = g.axis("cols", 2);
  Tensor x = g.state("x", f64, {n, h, w}, Initializer::normal(0, 1));
  const Axis tall = g.window(rows, {3, 3}), wide = g.window(cols, {3, 3});
  return {halo(x, {n, tall, wide}, 1), halo(x, {n, tall, w}, 0, 2.5), halo(x, {n, h, wide}, 3)};
}

const Semantics semantics{.name = "halo",
                          .task = task,
                          .gradient = gradient,
                          .chain = true,
                          .skip = skip,
                          .part = part,
                          .example = example};

const RegisterSemantics registered(semantics);

// Throws unless `windows` are the axes of an x with `axes`, some of them replaced.
void check(const char* op, const Tensor& given, const Axes& axes, const Axes& windows) {
  bool fits = axes.size() == windows.size() && axes.size() <= CopyBox::axes;
  for (std::size_t i = 0; fits && i < axes.size(); ++i) fits = axes[i] == windows[i] || windows[i].reach();
  if (!fits)
    throw std::invalid_argument("[" + std::string(op) + "] takes up to " + std::to_string(CopyBox::axes) +
                                " axes, each of them kept or replaced by one of Graph::window(), got " +
                                given.describe());
}

}  // namespace

Axes window_axes(const Axes& x, const Axes& y, int stride, const std::vector<std::int64_t>& kernel) {
  Axes all(x.begin(), x.begin() + 2);
  for (std::size_t i = 2; i < y.size(); ++i)
    all.push_back(y[i].graph().window(y[i], {stride, kernel[i - 2]}));
  return all;
}

Axes beside(const Axes& x, const Axes& y) {
  Axes all(x.begin(), x.begin() + 2);
  all.insert(all.end(), y.begin() + 2, y.end());
  return all;
}

Box box(const Node& node, const TileRange& range) {
  const auto& options = node.as<Halo>();
  const Axes &from = node.inputs[0].axes(), &to = node.outputs[0].axes();
  const Axes &x = options.back ? to : from, &windows = options.back ? from : to;
  Box b;
  b.extent.fill(1);
  CopyBox::Index &in_x = options.back ? b.dst_begin : b.src_begin,
                 &in_windows = options.back ? b.src_begin : b.dst_begin;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t at = b.extent.size() - x.size() + i;
    if (x[i] == windows[i]) {
      b.extent[at] = static_cast<std::int32_t>(range.extent(x[i]));
      continue;
    }
    const std::int64_t x_begin = range.begin(x[i]), begin = begin_in_x(windows[i], options.padding, range);
    const std::int64_t first = std::max(x_begin, begin);
    const std::int64_t last = std::min(x_begin + range.extent(x[i]), begin + range.extent(windows[i]));
    if (first >= last) return {};
    in_x[at] = static_cast<std::int32_t>(first - x_begin);
    in_windows[at] = static_cast<std::int32_t>(first - begin);
    b.extent[at] = static_cast<std::int32_t>(last - first);
  }
  return b;
}

Tensor halo(const Tensor& x, const Axes& axes, int padding, double value) {
  check("halo", x, x.axes(), axes);
  return x.graph().emit(semantics, Halo{padding, value, false}, {x}, {{x.dtype(), axes}})[0];
}

Tensor halo_grad(const Tensor& windows, const Axes& axes, int padding) {
  check("halo_grad", windows, axes, windows.axes());
  return windows.graph().emit(gradient_semantics, Halo{padding, 0, true}, {windows},
                              {{windows.dtype(), axes}})[0];
}

}  // namespace tegula
