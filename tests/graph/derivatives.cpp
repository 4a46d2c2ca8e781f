#include "tests/graph/derivatives.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <random>
#include <set>

#include "framework/graph/ops.hpp"
#include "framework/program/program.hpp"
#include "tests/graph/runtime.hpp"

namespace tegula::test {

namespace {

constexpr double step = 1e-5;

// A scalar that depends on each element of y in a way of its own.
Tensor weighted_sum(const Tensor& y) {
  const std::string name = "weight" + std::to_string(y.graph().tensors().size());
  Tensor weight = y.graph().state(name, f64, y.axes(), Initializer::normal(0, 1));
  return sum(weight * y);
}

struct Derivative {
  std::string name;
  std::vector<Tensor> x;
  Tensor value;                  // a scalar
  std::vector<Tensor> gradient;  // by each of x; none: zero
};

Derivative differentiate(std::string name, const Tensor& value, const std::vector<Tensor>& x) {
  std::vector<Tensor> gradient = gradients(value, x);
  for (std::size_t i = 0; i < x.size(); ++i)
    if (gradient[i]) gradient[i] = broadcast_to(gradient[i], x[i].axes());
  return {std::move(name), x, value, std::move(gradient)};
}

void add_derivatives(const Subject& subject, std::vector<Derivative>& all) {
  all.push_back(differentiate("first derivative of " + subject.name, weighted_sum(subject.y), subject.x));
  Tensor scalar;
  for (const Tensor& gradient : std::vector(all.back().gradient))
    if (gradient) scalar = scalar ? scalar + weighted_sum(gradient) : weighted_sum(gradient);
  if (!scalar) return;
  try {
    all.push_back(differentiate("second derivative of " + subject.name, scalar, subject.x));
  } catch (const std::invalid_argument& error) {
    CHECK(std::string(error.what()).find("has no second derivative") != std::string::npos);
  }
}

// What no plan may cut: axes that a node needs whole, or that what it expands to does.
void add_whole_axes(Graph& graph, const Node& node, std::set<int>& whole) {
  if (!node.semantics->whole) return;
  if (!node.semantics->expand) {
    for (const Axis& axis : node.semantics->whole(node)) whole.insert(axis.id());
    return;
  }
  const auto first = static_cast<int>(graph.nodes().size());
  node.semantics->expand(node);
  for (const Node& part : graph.take_nodes_from(first)) add_whole_axes(graph, part, whole);
}

Plan cut_everything(Graph& graph, int group) {
  std::set<int> whole;
  const std::vector<Node> nodes(graph.nodes().begin(), graph.nodes().end());
  for (const Node& node : nodes) add_whole_axes(graph, node, whole);
  Plan plan;
  for (const Axis& axis : graph.axes())
    if (!whole.contains(axis.id())) plan.tile(axis, 2).group(axis, group);
  return plan;
}

class Machine {
 public:
  Machine(Graph& graph, const Plan& plan, const std::map<int, Tensor>& outputs, const Values& contents)
      : program_(compile(graph, plan, runtime(), {.outputs = list(outputs)})), outputs_(outputs) {
    for (const auto& [id, values] : contents) program_.write(graph.tensor(id), values);
  }
  Program& program() { return program_; }
  Values run() {
    Result result = program_.run({{"step", 1}});
    Values values;
    for (const auto& [id, output] : outputs_) values[id] = result.values(output);
    return values;
  }

 private:
  static std::vector<Tensor> list(const std::map<int, Tensor>& outputs) {
    std::vector<Tensor> all;
    for (const auto& [id, output] : outputs) all.push_back(output);
    return all;
  }
  Program program_;
  const std::map<int, Tensor>& outputs_;
};

}  // namespace

void check_close(const std::string& name, const std::vector<double>& values,
                 const std::vector<double>& expected, double tolerance) {
  REQUIRE(values.size() == expected.size());
  double squares = 0;
  for (double x : expected) squares += x * x;
  const double scale = std::sqrt(squares / static_cast<double>(expected.size()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    // The 1 is for sums of terms of that order that cancel: their error is the terms', however small the sum.
    if (std::abs(values[i] - expected[i]) <= tolerance * (1 + std::abs(expected[i]) + scale)) continue;
    FAIL_CHECK(name << ": element " << i << " is " << values[i] << ", not " << expected[i]);
    return;
  }
}

Values check_derivatives(Graph& graph, const std::vector<Subject>& subjects,
                         const std::vector<std::vector<Tensor>>& directions, const Conditions& conditions) {
  std::vector<Derivative> derivatives;
  for (const Subject& subject : subjects) add_derivatives(subject, derivatives);
  std::map<int, Tensor> outputs;
  for (const Subject& subject : subjects) outputs.emplace(subject.y.id(), subject.y);
  for (const Derivative& d : derivatives) {
    outputs.emplace(d.value.id(), d.value);
    for (const Tensor& gradient : d.gradient)
      if (gradient) outputs.emplace(gradient.id(), gradient);
  }

  Machine whole(graph, Plan(), outputs, conditions.contents);
  const Values base = whole.run();

  std::mt19937_64 random(1);
  for (const std::vector<Tensor>& states : directions) {
    Values at, towards;
    for (const Tensor& x : states) {
      at[x.id()] = whole.program().read(x);
      for (std::size_t i = 0; i < at[x.id()].size(); ++i)
        towards[x.id()].push_back(std::uniform_real_distribution(-1.0, 1.0)(random));
    }
    auto run_at = [&](double distance) {
      for (const Tensor& x : states) {
        std::vector<double> moved = at[x.id()];
        for (std::size_t i = 0; i < moved.size(); ++i) moved[i] += distance * towards[x.id()][i];
        whole.program().write(x, moved);
      }
      return whole.run();
    };
    const Values ahead = run_at(step), behind = run_at(-step);
    run_at(0);
    for (const Derivative& d : derivatives) {
      double slope = 0, scale = 1 + std::abs(base.at(d.value.id())[0]);
      for (std::size_t k = 0; k < d.x.size(); ++k) {
        auto direction = towards.find(d.x[k].id());
        if (!d.gradient[k] || direction == towards.end()) continue;
        const std::vector<double>& gradient = base.at(d.gradient[k].id());
        for (std::size_t i = 0; i < gradient.size(); ++i) {
          slope += gradient[i] * direction->second[i];
          scale += std::abs(gradient[i] * direction->second[i]);
        }
      }
      const double difference = (ahead.at(d.value.id())[0] - behind.at(d.value.id())[0]) / (2 * step);
      INFO(d.name << ", moving " << states.front().name() << ": " << slope << " by autodiff, " << difference
                  << " by finite differences");
      CHECK(std::abs(slope - difference) <= 1e-7 * scale);
    }
  }

  for (int group : conditions.groups) {
    const Values cut = Machine(graph, cut_everything(graph, group), outputs, conditions.contents).run();
    for (const auto& [id, values] : base)
      check_close(graph.tensor(id).name() + " in groups of " + std::to_string(group), cut.at(id), values,
                  1e-12);
  }
  return base;
}

}  // namespace tegula::test
