// The tile API: submitting work on tiles by hand. Everything here returns at once; StarPU orders tasks by the tiles
// they share. The graph level compiles down to the same calls.
#pragma once

#include <array>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "framework/tile/task.hpp"
#include "kernels/gemm.hpp"
#include "kernels/pointwise_op.hpp"

namespace tegula::submit {

// The type to run `op` for: that of the first tile whose operand is not of a fixed type.
DType run_type(const OpInfo& op, std::span<const Tile* const> tiles);

// A task running `op` on `tiles`: see PreparedTask for order and errors.
void task(const OpInfo& op, DType dtype, const void* attributes, std::span<const Tile* const> tiles,
          const TaskOptions& options = {});

// The same with the op's own struct, op(Softmax{rows, columns}, x, y), in the element type that the tiles have where the
// op leaves it open.
template <class Op, class... Tiles>
void op(const Op& attributes, const Tiles&... tiles) {
  const Tile* list[] = {&tiles...};
  task(op_info<Op>(), run_type(op_info<Op>(), list), &attributes, list);
}

// Host code that fills a tile (write) or looks at it (read) when its turn comes, on a CPU worker.
void fill(const Tile& tile, std::function<void(void* data)> write, const TaskOptions& options = {});
void visit(const Tile& tile, std::function<void(const void* data)> read, const TaskOptions& options = {});

// Messages between ranks, matched by `tag` and in order per tag. Sent as soon as the tile is written, received
// into a tile of the same extents.
void send(Runtime& runtime, const Tile& tile, int destination, std::int64_t tag, int priority = 0);
// `what` is for the message about a rank that has stopped; it must live on.
void receive(Runtime& runtime, const Tile& tile, int source, std::int64_t tag, const char* what = "a tile");

// The contents are not needed any more, once the tasks submitted so far have run: memory goes back to StarPU.
void drop(const Tile& tile);

// c = act(alpha op(a) op(b) + beta c + bias), with beta 1 where accumulate is set and 0 otherwise. a, b, c are
// matrices (m, k), (k, n), (m, n); a is stored (k, m) and b (n, k) where transposed.
struct GemmOptions {
  bool transpose_a = false, transpose_b = false, accumulate = false;
  float alpha = 1;
  const Tile* bias = nullptr;  // (n)
  Activation activation = Activation::identity;
};
void gemm(const Tile& a, const Tile& b, const Tile& c, const GemmOptions& options = {},
          const TaskOptions& task = {});

// Distances between the elements of `x` along the axes of `y`, 0 where x repeats: x has the extents of y, or 1 instead
// of some, or lacks leading ones. Throws std::invalid_argument, in the name of `op`, where it does not fit.
std::vector<std::int64_t> broadcast_strides(const std::string& op, const Tile& x, const Tile& y);

// y = f(x...) element by element, any functor of kernels/pointwise.hpp: apply(pointwise::Add{}, a, bias, y).
template <class F, class... Tiles>
void apply(const F& f, const Tiles&... operands) {
  static_assert(sizeof...(Tiles) == F::arity + 1, "as many inputs as the functor takes, then the output");
  const Tile* list[] = {&operands...};
  const Tile& y = *list[F::arity];
  std::array<std::vector<std::int64_t>, F::arity> strides;
  for (int k = 0; k < F::arity; ++k) strides[k] = broadcast_strides(pointwise::name_of<F>(), *list[k], y);
  op(Pointwise<F>{f, {y.extents(), strides}}, operands...);
}

}  // namespace tegula::submit
