// Conversion between element types.
#include "kernels/cast.hpp"

#include <stdexcept>

#include "framework/graph/ops.hpp"

namespace tegula {

namespace {

bool is_real(DType dtype) { return dtype != i32 && dtype != u8; }

const Semantics semantics{
    .name = "cast",
    .task =
        [](const Node& node, const TileRange& range) {
          const Tensor &x = node.inputs[0], &y = node.outputs[0];
          return visit_dtype(x.dtype(), [&]<class From>() {
            return TaskSpec::of(Cast<From>{range.elements(y.axes())}, y.dtype());
          });
        },
    .gradient = [](const Node& node, std::span<const Tensor> outputs) -> std::vector<Tensor> {
      DType from = node.inputs[0].dtype();
      if (!is_real(from)) return {{}};
      return {cast(outputs[0], from)};
    }};

}  // namespace

Tensor cast(const Tensor& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  if (!is_real(dtype)) throw std::invalid_argument("[cast] to integers is not offered: " + x.describe());
  return x.graph().emit(semantics, {}, {x}, {{dtype, x.axes()}})[0];
}

}  // namespace tegula
