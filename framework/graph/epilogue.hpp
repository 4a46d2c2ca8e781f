// What a contraction or convolution can take into its kernel from the node that uses its result: helpers for
// Semantics::absorb.
#pragma once

#include <optional>

#include "framework/graph/pointwise.hpp"
#include "kernels/activation.hpp"

namespace tegula::epilogue {

// b, if `user` is y + b.
inline Tensor bias(const Node& user, const Tensor& y) {
  if (user.semantics != &detail::PointwiseSemantics<pointwise::Add>::semantics()) return {};
  return user.inputs[0] == y ? user.inputs[1] : user.inputs[0];
}

namespace detail_ {
template <template <class> class Wrap>
std::optional<Activation> find(const Semantics* semantics) {
  using enum Activation;
  std::optional<Activation> found;
  for (Activation activation : {relu, tanh, sigmoid})
    with_activation(activation, [&]<class F>(F) {
      if constexpr (pointwise::has_output_slope<F>)
        if (semantics == &detail::PointwiseSemantics<Wrap<F>>::semantics()) found = activation;
    });
  return found;
}
template <class F>
using Plain = F;
}  // namespace detail_

// The activation that `user` is.
inline std::optional<Activation> activation(const Node& user) {
  return detail_::find<detail_::Plain>(user.semantics);
}
// The activation whose slope `user` multiplies by; its inputs are the activation's output and the gradient.
inline std::optional<Activation> slope(const Node& user) {
  return detail_::find<pointwise::OutputSlope>(user.semantics);
}

}  // namespace tegula::epilogue
