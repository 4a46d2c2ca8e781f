// Tensor contraction on GEMM: one task per tuple of tiles, accumulated over the tiles of the summed axes.
#include <algorithm>
#include <stdexcept>

#include "framework/graph/epilogue.hpp"
#include "framework/graph/ops.hpp"
#include "kernels/gemm.hpp"

namespace tegula {

namespace {

// Inputs of the node: a, b, bias (or none), the activation's output whose slope is applied (or none).
struct Contraction {
  Activation activation = Activation::identity;
  bool done = false;  // nothing can follow in the same task
};

bool contains(const Axes& axes, const Axis& axis) { return std::ranges::find(axes, axis) != axes.end(); }

// The axes of `all` for which the predicate holds, in order.
template <class P>
Axes select(const Axes& all, P&& predicate) {
  Axes some;
  std::ranges::copy_if(all, std::back_inserter(some), predicate);
  return some;
}

bool concatenates(const Axes& all, const Axes& x, const Axes& y, const Axes& z) {
  Axes joined = x;
  joined.insert(joined.end(), y.begin(), y.end());
  joined.insert(joined.end(), z.begin(), z.end());
  return joined == all;
}

// The roles of the axes, read off the operands: batch in all three, rows in a and c, columns in b and c, summed in
// a and b.
struct Roles {
  Axes batch, rows, columns, summed;
  bool trans_a, trans_b, fits;

  Roles(const Axes& a, const Axes& b, const Axes& c) {
    batch = select(c, [&](const Axis& x) { return contains(a, x) && contains(b, x); });
    rows = select(c, [&](const Axis& x) { return contains(a, x) && !contains(b, x); });
    columns = select(c, [&](const Axis& x) { return contains(b, x) && !contains(a, x); });
    summed = select(a, [&](const Axis& x) { return !contains(c, x); });
    trans_a = !concatenates(a, batch, rows, summed);
    trans_b = !concatenates(b, batch, summed, columns);
    fits = concatenates(c, batch, rows, columns) && (!trans_a || concatenates(a, batch, summed, rows)) &&
           (!trans_b || concatenates(b, batch, columns, summed));
  }
};

TaskSpec contraction_task(const Node& node, const TileRange& range) {
  const auto& options = node.as<Contraction>();
  const Tensor& c = node.outputs[0];
  Roles roles(node.inputs[0].axes(), node.inputs[1].axes(), c.axes());
  Gemm gemm{};
  gemm.batch = static_cast<int>(range.elements(roles.batch));
  gemm.m = static_cast<int>(range.elements(roles.rows));
  gemm.n = static_cast<int>(range.elements(roles.columns));
  gemm.k = static_cast<int>(range.elements(roles.summed));
  gemm.trans_a = roles.trans_a;
  gemm.trans_b = roles.trans_b;
  gemm.alpha = 1;
  gemm.beta = range.first() ? 0 : 1;
  // Bias and activation come once, after the last summand.
  gemm.has_bias = range.last() && node.inputs[2];
  gemm.activation = range.last() ? options.activation : Activation::identity;
  gemm.has_slope = range.last() && node.inputs[3];
  return TaskSpec::of(gemm, c.dtype());
}

std::vector<Tensor> contraction_gradient(const Node& node, std::span<const Tensor> outputs) {
  const Tensor &a = node.inputs[0], &b = node.inputs[1];
  Tensor dc = broadcast_to(outputs[0], node.outputs[0].axes());
  return {contract(dc, b, a.axes()), contract(dc, a, b.axes()), {}, {}};
}

std::vector<Tensor> contraction_example(Graph& g) {
  Axis n = g.axis("n", 2), i = g.axis("i", 5), j = g.axis("j", 3), k = g.axis("k", 4), l = g.axis("l", 2);
  auto normal = Initializer::normal(0, 1);
  Tensor x = g.state("x", f64, {n, i, k, l}, normal), y = g.state("y", f64, {n, j, k, l}, normal);
  Tensor w = g.state("w", f64, {k, l, j}, normal);
  return {contract(x, y, {n, i, j}), contract(x, w, {n, i, j})};
}

bool absorb_into_contraction(Node& node, const Node& user) {
  auto options = node.as<Contraction>();
  const Tensor c = node.outputs[0];
  if (options.done) return false;
  if (Tensor bias = epilogue::bias(user, c)) {
    Roles roles(node.inputs[0].axes(), node.inputs[1].axes(), c.axes());
    if (node.inputs[2] || bias.axes() != roles.columns) return false;
    node.inputs[2] = bias;
  } else if (auto activation = epilogue::activation(user)) {
    options = {*activation, true};
  } else if (auto slope = epilogue::slope(user);
             slope && user.inputs[1] == c && user.inputs[0].axes() == c.axes()) {
    if (node.inputs[2]) return false;
    options = {*slope, true};
    node.inputs[3] = user.inputs[0];
  } else {
    return false;
  }
  node.attributes = options;
  node.outputs = user.outputs;
  return true;
}

const Semantics semantics{.name = "contract",
                          .task = contraction_task,
                          .gradient = contraction_gradient,
                          .absorb = absorb_into_contraction,
                          .example = contraction_example};

const RegisterSemantics registered(semantics);

}  // namespace

Tensor contract(const Tensor& a, const Tensor& b, const Axes& output) {
  std::string operands = a.describe() + " and " + b.describe();
  if (a.dtype() != b.dtype()) throw std::invalid_argument("[contract] dtypes differ: " + operands);
  for (const Axis& axis : output)
    if (!a.has(axis) && !b.has(axis))
      throw std::invalid_argument("[contract] the output's axis " + axis.name() + " is in neither " +
                                  operands);
  for (const Tensor* x : {&a, &b})
    for (const Axis& axis : x->axes())
      if (!contains(output, axis) && !(a.has(axis) && b.has(axis)))
        throw std::invalid_argument("[contract] axis " + axis.name() +
                                    " is summed over but in one operand only (sum() it first): " + operands);
  if (Roles roles(a.axes(), b.axes(), output); !roles.fits) {
    // The output may want b's part first: then b is the left operand.
    if (!Roles(b.axes(), a.axes(), output).fits)
      throw std::invalid_argument(
          "[contract] the axes of " + operands +
          " are not (batch..., rows..., columns...) up to a transposition; permute() one");
    return contract(b, a, output);
  }
  return a.graph().emit(semantics, Contraction{}, {a, b, {}, {}}, {{a.dtype(), output}})[0];
}

Tensor matmul(const Tensor& x, const Tensor& w) {
  if (x.axes().empty() || w.axes().size() != 2)
    throw std::invalid_argument("[matmul] takes (..., k) and (k, n), got " + x.describe() + " and " +
                                w.describe());
  if (x.axes().back().extent() != w.axes()[0].extent())
    throw std::invalid_argument("[matmul] inner axes differ: x is " + x.describe() + ", w is " +
                                w.describe());
  x.graph().join(x.axes().back(), w.axes()[0], "matmul");
  Axes output(x.axes().begin(), x.axes().end() - 1);
  output.push_back(w.axes()[1]);
  return contract(x, w, output);
}

}  // namespace tegula
