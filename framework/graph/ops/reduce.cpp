// Reductions: sum, mean, max, log-sum-exp over any set of axes.
#include "kernels/reduce.hpp"

#include <algorithm>
#include <stdexcept>

#include "framework/graph/constant.hpp"
#include "framework/graph/ops.hpp"

namespace tegula {

namespace {

enum class Kind : std::uint8_t { sum, mean, max, log_sum_exp };

double count_along(const Axes& axes, const TileRange& range) {
  double count = 1;
  for (const Axis& axis : axes) count *= static_cast<double>(range.full_extent(axis));
  return count;
}

Axes missing(const Tensor& x, const Tensor& y) {
  Axes axes;
  for (const Axis& axis : x.axes())
    if (!y.has(axis)) axes.push_back(axis);
  return axes;
}

// x / (number of elements along the axes): an op because the extents are known when a program is compiled.
Tensor divide_by_count(const Tensor& x, const Axes& axes) {
  if (auto constant = detail::constant_of(x)) {
    constant->divided_by.insert(constant->divided_by.end(), axes.begin(), axes.end());
    return detail::constant(x.graph(), *constant, x.axes(), x.dtype());
  }
  static const Semantics semantics{
      .name = "divide_by_count",
      .task =
          [](const Node& node, const TileRange& range) {
            const Axes& all = node.outputs[0].axes();
            Pointwise<pointwise::Scale> op{
                {1 / count_along(node.as<Axes>(), range)},
                {range.extents(all), {detail::broadcast_strides(range, all, all)}}};
            return TaskSpec::of(op, node.outputs[0].dtype());
          },
      .gradient = [](const Node& node, std::span<const Tensor> dy) -> std::vector<Tensor> {
        return {divide_by_count(dy[0], node.as<Axes>())};
      }};
  return x.graph().emit(semantics, axes, {x}, {{x.dtype(), x.axes()}})[0];
}

TaskSpec reduce_task(const Node& node, const TileRange& range) {
  const Tensor &x = node.inputs[0], &y = node.outputs[0];
  Kind kind = node.as<Kind>();
  Reduce reduce{};
  reduce.kind = kind == Kind::max           ? Reduce::Kind::max
                : kind == Kind::log_sum_exp ? Reduce::Kind::log_sum_exp
                                            : Reduce::Kind::sum;
  reduce.rank = static_cast<int>(x.axes().size());
  for (int i = 0; i < reduce.rank; ++i) {
    reduce.extent[i] = static_cast<int>(range.extent(x.axes()[i]));
    reduce.reduced[i] = !y.has(x.axes()[i]);
  }
  reduce.scale = kind == Kind::mean ? 1 / count_along(missing(x, y), range) : 1;
  reduce.accumulate = !range.first();
  return TaskSpec::of(reduce, y.dtype());
}

std::vector<Tensor> reduce_gradient(const Node& node, std::span<const Tensor> outputs) {
  const Tensor &x = node.inputs[0], &y = node.outputs[0], &dy = outputs[0];
  switch (node.as<Kind>()) {
    case Kind::sum:
      return {dy};  // constant along the reduced axes
    case Kind::mean:
      return {divide_by_count(dy, missing(x, y))};
    case Kind::log_sum_exp:
      return {apply(pointwise::ExpMinus{}, x, y) * dy};
    case Kind::max: {
      Tensor is_max = apply(pointwise::Equal{}, x, y);
      return {is_max * (broadcast_to(dy, y.axes()) / sum(is_max, missing(x, y)))};
    }
  }
  return {};
}

Combine reduce_combine(const Node& node) {
  switch (node.as<Kind>()) {
    case Kind::max:
      return Combine::max;
    case Kind::log_sum_exp:
      return Combine::log_sum_exp;
    default:
      return Combine::sum;
  }
}

std::vector<Tensor> reduce_example(Graph& g) {
  Axis i = g.axis("i", 5), j = g.axis("j", 3), k = g.axis("k", 4);
  Tensor x = g.state("x", f64, {i, j, k}, Initializer::normal(0, 1));
  return {sum(x, {j}), mean(x, {i, k}), max(x, {k}), log_sum_exp(x, {i}), mean(x)};
}

const Semantics semantics{.name = "reduce",
                          .task = reduce_task,
                          .gradient = reduce_gradient,
                          .combine = reduce_combine,
                          .example = reduce_example};

const RegisterSemantics registered(semantics);

Tensor reduce(const Tensor& x, const Axes& axes, Kind kind, std::string_view name) {
  Axes kept;
  for (const Axis& axis : axes)
    if (!x.has(axis))
      throw std::invalid_argument("[" + std::string(name) + "] axis " + axis.name() + " is not in " +
                                  x.describe());
  for (const Axis& axis : x.axes())
    if (std::ranges::find(axes, axis) == axes.end()) kept.push_back(axis);
  if (kept.size() == x.axes().size()) return x;
  return x.graph().emit(semantics, kind, {x}, {{x.dtype(), kept}})[0];
}

}  // namespace

Tensor sum(const Tensor& x, const Axes& axes) { return reduce(x, axes, Kind::sum, "sum"); }
Tensor mean(const Tensor& x, const Axes& axes) { return reduce(x, axes, Kind::mean, "mean"); }
Tensor max(const Tensor& x, const Axes& axes) { return reduce(x, axes, Kind::max, "max"); }
Tensor log_sum_exp(const Tensor& x, const Axes& axes) {
  return reduce(x, axes, Kind::log_sum_exp, "log_sum_exp");
}
Tensor sum(const Tensor& x) { return sum(x, Axes(x.axes())); }
Tensor mean(const Tensor& x) { return mean(x, Axes(x.axes())); }

}  // namespace tegula
