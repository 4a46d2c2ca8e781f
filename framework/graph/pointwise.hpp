// Pointwise ops on the graph: apply(pointwise::Gelu{}, x) for any functor of kernels/pointwise.hpp, gradients included.
#pragma once

#include "framework/graph/graph.hpp"
#include "kernels/pointwise_op.hpp"

namespace tegula {

Tensor sum(const Tensor& x, const Axes& axes);
Tensor permute(const Tensor& x, const Axes& order);
Tensor broadcast_to(const Tensor& x, const Axes& axes);
template <class F, class... T>
Tensor apply(const F& f, const T&... inputs);

namespace detail {

// Axes of the result: those of the input that has most; every other input's are among them. Inputs of equal rank have
// their axes joined position by position. Throws std::invalid_argument, starting with the op's name.
Axes broadcast_axes(std::string_view op, std::span<const Tensor> inputs);
// Sums `gradient` over the axes that x lacks and brings the rest into x's order.
Tensor reduce_to(const Tensor& x, const Tensor& gradient);
// Per input axis strides, in elements, along the output's axes; 0 along those the input lacks.
std::vector<std::int64_t> broadcast_strides(const TileRange& range, const Axes& output, const Axes& input);

template <class F>
inline constexpr int derivative_order = 0;
template <class F, int i>
inline constexpr int derivative_order<pointwise::Slope<F, i>> = derivative_order<F> + 1;
template <class F>
inline constexpr int derivative_order<pointwise::OutputSlope<F>> = derivative_order<F> + 1;

template <class F>
struct PointwiseSemantics {
  static TaskSpec task(const Node& node, const TileRange& range) {
    const Axes& axes = node.outputs[0].axes();
    std::array<std::vector<std::int64_t>, F::arity> strides;
    for (int i = 0; i < F::arity; ++i) strides[i] = broadcast_strides(range, axes, node.inputs[i].axes());
    return TaskSpec::of(Pointwise<F>{node.as<F>(), {range.extents(axes), strides}}, node.outputs[0].dtype());
  }

  static std::vector<Tensor> gradient(const Node& node, std::span<const Tensor> outputs) {
    return [&]<int... i>(std::integer_sequence<int, i...>) {
      return std::vector<Tensor>{by_input<i>(node, outputs[0])...};
    }
    (std::make_integer_sequence<int, F::arity>{});
  }

  template <int i>
  static Tensor by_input(const Node& node, Tensor dy) {
    const F& f = node.as<F>();
    const Tensor &x = node.inputs[i], &y = node.outputs[0];
    if (std::optional<double> constant = pointwise::constant_slope(f, i); constant == 0.0)
      return {};
    else if (x.axes().size() < y.axes().size())
      dy = broadcast_to(dy, y.axes());  // so that the sum counts
    return reduce_to(x, times_slope<i>(node, dy));
  }

  template <int i>
  static Tensor times_slope(const Node& node, const Tensor& dy) {
    const F& f = node.as<F>();
    if (std::optional<double> constant = pointwise::constant_slope(f, i))
      return *constant == 1 ? dy : apply(pointwise::Scale{*constant}, dy);
    constexpr bool linear_in_last = derivative_order < F >> 0 && i == F::arity - 1;
    if constexpr (linear_in_last)
      return apply_to<F::arity - 1>(f, node, dy);
    else if constexpr (pointwise::has_output_slope<F>)
      return apply(pointwise::OutputSlope<F>{f}, node.outputs[0], dy);
    else if constexpr (derivative_order<F> < 2)
      return apply_to<F::arity>(pointwise::Slope<F, i>{f}, node, dy);
    else
      throw std::invalid_argument("[" + pointwise::name_of<F>() + "] has no third derivative");
  }

  // g of the node's first n inputs and dy.
  template <int n, class G>
  static Tensor apply_to(const G& g, const Node& node, const Tensor& dy) {
    return [&]<std::size_t... k>(std::index_sequence<k...>) { return apply(g, node.inputs[k]..., dy); }
    (std::make_index_sequence<n>{});
  }

  static const Semantics& semantics() {
    static const std::string name = pointwise::name_of<F>();
    static const Semantics made{.name = name, .task = task, .gradient = gradient};
    return made;
  }
};

}  // namespace detail

// f element by element, broadcasting inputs along the axes they lack. All inputs have one dtype.
template <class F, class... T>
Tensor apply(const F& f, const T&... inputs) {
  static_assert(sizeof...(T) == F::arity, "number of arguments");
  std::vector<Tensor> list{inputs...};
  const Semantics& semantics = detail::PointwiseSemantics<F>::semantics();
  Axes axes = detail::broadcast_axes(semantics.name, list);
  Graph& graph = list[0].graph();
  DType dtype = list[0].dtype();
  return graph.emit(semantics, f, std::move(list), {{dtype, std::move(axes)}})[0];
}

}  // namespace tegula
