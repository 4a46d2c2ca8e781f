// Tensors of one value that is known when the graph is made. Broadcasting or dividing them folds into them, so that the
// gradient of a mean needs no task that waits for the loss, and no message.
#pragma once

#include <optional>

#include "framework/graph/graph.hpp"

namespace tegula::detail {

struct Constant {
  double value;
  Axes divided_by;  // by their numbers of elements, which a program knows
};

Tensor constant(Graph& graph, const Constant& constant, const Axes& axes, DType dtype);
std::optional<Constant> constant_of(const Tensor& x);

}  // namespace tegula::detail
