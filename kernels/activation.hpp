// The activations that a product's epilogue can apply while its result is still in cache.
#pragma once

#include <cstdint>

#include "kernels/pointwise.hpp"

namespace tegula {

enum class Activation : std::int32_t { identity, relu, tanh, sigmoid };

// Calls f(functor) with the pointwise functor of `activation`.
template <class F>
void with_activation(Activation activation, F&& f) {
  switch (activation) {
    case Activation::identity:
      return f(pointwise::Identity{});
    case Activation::relu:
      return f(pointwise::Relu{});
    case Activation::tanh:
      return f(pointwise::Tanh{});
    case Activation::sigmoid:
      return f(pointwise::Sigmoid{});
  }
}

// The derivative of an activation at the point where it is y.
template <class F, class T>
TEGULA_FN T slope_at_output(F f, T y) {
  if constexpr (requires { f.slope_from_output(y); })
    return f.slope_from_output(y);
  else
    return T(1);  // the identity
}

}  // namespace tegula
