// Writing one row of a state: a node without outputs, as an optimizer's step.
#include "kernels/write_at.hpp"

#include <stdexcept>

#include "framework/graph/ops.hpp"

namespace tegula {

namespace {

const Semantics semantics{.name = "write_at", .task = [](const Node& node, const TileRange& range) {
                            const Axes& axes = node.inputs[0].axes();
                            WriteAt op{};
                            op.batch = static_cast<int>(range.extent(axes[0]));
                            op.length = static_cast<int>(range.extent(axes[1]));
                            op.inner = static_cast<int>(range.elements(Axes(axes.begin() + 2, axes.end())));
                            op.begin = static_cast<int>(range.begin(axes[1]));
                            return TaskSpec::of(op, node.inputs[0].dtype());
                          }};

}  // namespace

void write_at(const Tensor& kept, const Tensor& x) {
  auto fits = [&] {
    const Axes &a = kept.axes(), &b = x.axes();
    if (kept.info().kind != TensorInfo::Kind::state || kept.dtype() != x.dtype()) return false;
    if (a.size() != b.size() || a.size() < 2 || b[1].extent() != 1) return false;
    for (std::size_t i = 0; i < a.size(); ++i)
      if (i != 1 && a[i] != b[i]) return false;
    return true;
  };
  if (!fits())
    throw std::invalid_argument(
        "[write_at] takes a state (batch, length, ...) and x (batch, 1, ...) like it, got " +
        kept.describe() + " and " + x.describe());
  kept.graph().emit(semantics, {}, {kept, x}, {});
}

}  // namespace tegula
