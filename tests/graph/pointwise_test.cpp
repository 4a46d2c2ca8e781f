// The pointwise ops, from the list of them.
#include <doctest/doctest.h>

#include <random>

#include "framework/graph/ops.hpp"
#include "tests/graph/derivatives.hpp"

using namespace tegula;

namespace {

template <class F>
F example_of() {
  if constexpr (requires { F::example(); })
    return F::example();
  else
    return F();
}

// Index, in x, of the element that stands at `place` of y.
std::size_t index_in(const Tensor& x, const Tensor& y, std::size_t place) {
  std::size_t index = 0, stride = 1, rest = place;
  std::vector<std::pair<Axis, std::size_t>> at;
  for (auto axis = y.axes().rbegin(); axis != y.axes().rend(); ++axis) {
    at.emplace_back(*axis, rest % axis->extent());
    rest /= axis->extent();
  }
  for (auto axis = x.axes().rbegin(); axis != x.axes().rend(); ++axis) {
    for (const auto& [of, position] : at)
      if (of == *axis) index += stride * position;
    stride *= axis->extent();
  }
  return index;
}

class PointwiseCheck {
 public:
  PointwiseCheck() {
    // Operands of equal axes, in another order, lacking one, lacking all.
    layouts_ = {{{{i_, j_}, {i_, j_}, {i_, j_}}},
                {{{i_, j_}, {j_, i_}, {j_}}},
                {{{j_}, {i_, j_}, {}}},
                {{{}, {j_, i_}, {i_}}}};
  }

  template <class F>
  void add() {
    const F f = example_of<F>();
    for (std::size_t layout = 0; layout < (F::arity == 1 ? 1 : layouts_.size()); ++layout)
      [&]<std::size_t... k>(std::index_sequence<k...>) {
        const std::string name = pointwise::name_of<F>() + std::to_string(layout);
        std::array x{operand(f, name, layout, k)...};
        Tensor y = apply(f, x[k]...);
        // Steps have no finite differences: operands of slope 0 stay where they are.
        std::vector<Tensor> smooth;
        for (std::size_t operand = 0; operand < x.size(); ++operand)
          if (pointwise::constant_slope(f, static_cast<int>(operand)) != 0.0) {
            smooth.push_back(x[operand]);
            directions_[operand].push_back(x[operand]);
          }
        subjects_.push_back({name, y, smooth});
        std::vector<double>& expected = expected_[y.id()];
        for (std::size_t e = 0; e < static_cast<std::size_t>(y.elements()); ++e)
          expected.push_back(f.value(contents_[x[k].id()][index_in(x[k], y, e)]...));
      }
    (std::make_index_sequence<F::arity>{});
  }

  void check() {
    // Operand k of all ops moves at once: three directions do for all of them.
    const test::Values values =
        test::check_derivatives(graph_, subjects_, directions_, {.contents = contents_, .groups = {1}});
    for (const test::Subject& subject : subjects_)
      test::check_close(subject.name, values.at(subject.y.id()), expected_.at(subject.y.id()), 1e-13);
  }

 private:
  template <class F>
  Tensor operand(const F& f, const std::string& op, std::size_t layout, std::size_t k) {
    Tensor x = graph_.state(op + "." + std::to_string(k), f64, layouts_[layout][k]);
    for (std::int64_t e = 0; e < x.elements(); ++e)
      contents_[x.id()].push_back(
          pointwise::sample_of(f, static_cast<int>(k), std::uniform_real_distribution(0.0, 1.0)(random_)));
    return x;
  }

  Graph graph_;
  Axis i_ = graph_.axis("i", 5), j_ = graph_.axis("j", 3);
  std::vector<std::array<Axes, 3>> layouts_;
  std::mt19937_64 random_{2};
  test::Values contents_, expected_;
  std::vector<test::Subject> subjects_;
  std::vector<std::vector<Tensor>> directions_{3};
};

}  // namespace

TEST_CASE("values and derivatives of every pointwise op, with broadcasting") {
  PointwiseCheck all;
  pointwise::for_each_of_order<0>([&]<class F>() { all.add<F>(); });
  all.check();
}
