#include "framework/graph/graph.hpp"

#include <algorithm>
#include <stdexcept>

namespace tegula {

namespace {
std::vector<const Semantics*>& all_semantics() {
  static std::vector<const Semantics*> all;
  return all;
}
}  // namespace

std::span<const Semantics* const> registered_semantics() { return all_semantics(); }
RegisterSemantics::RegisterSemantics(const Semantics& semantics) { all_semantics().push_back(&semantics); }

const std::string& Axis::name() const { return graph_->axes_[id()].name; }
std::int64_t Axis::extent() const { return graph_->axes_[id()].extent; }
int Axis::id() const { return graph_ ? graph_->root(id_) : -1; }
Axis Axis::original() const {
  const int original = graph_->axes_[id()].original;
  return original < 0 ? *this : Axis(graph_, original);
}
std::optional<Reach> Axis::reach() const { return graph_->axes_[id()].reach; }
std::optional<Axis> Axis::along() const {
  const int along = graph_->axes_[id()].along;
  return along < 0 ? std::nullopt : std::optional(Axis(graph_, along));
}

int Tensor::stream() const { return info().repeats < 0 ? id_ : info().repeats; }
const TensorInfo& Tensor::info() const { return graph_->tensors_[id_]; }
const std::string& Tensor::name() const { return info().name; }
DType Tensor::dtype() const { return info().dtype; }
const Axes& Tensor::axes() const { return info().axes; }
bool Tensor::has(const Axis& axis) const { return std::ranges::find(axes(), axis) != axes().end(); }

std::int64_t Tensor::elements() const {
  std::int64_t product = 1;
  for (const Axis& axis : axes()) product *= axis.extent();
  return product;
}

std::string Tensor::describe() const {
  std::string text = name() + " (";
  for (const Axis& axis : axes())
    text += (&axis == &axes().front() ? "" : ", ") + axis.name() + " " + std::to_string(axis.extent());
  return text + ") " + std::string(name_of(dtype()));
}

std::vector<std::int64_t> TileRange::extents(const Axes& axes) const {
  std::vector<std::int64_t> all;
  for (const Axis& axis : axes) all.push_back(extent(axis));
  return all;
}

std::int64_t TileRange::elements(const Axes& axes) const {
  std::int64_t product = 1;
  for (const Axis& axis : axes) product *= extent(axis);
  return product;
}

Axis Graph::axis(std::string name, std::int64_t extent, std::optional<Axis> along) {
  if (extent < 0)
    throw std::invalid_argument("[axis] the extent of \"" + name + "\" is " + std::to_string(extent) +
                                "; it must not be negative");
  int id = static_cast<int>(axes_.size());
  axes_.push_back({std::move(name), extent, id});
  if (along) axes_.back().along = along->id();
  return {this, id};
}

Axis Graph::twin(const Axis& axis) {
  for (int id = 0; id < static_cast<int>(axes_.size()); ++id)
    if (axes_[id].original >= 0 && !axes_[id].reach && root(axes_[id].original) == axis.id())
      return {this, id};
  const int id = static_cast<int>(axes_.size());
  axes_.push_back({axis.name() + "'", axis.extent(), id, axis.id()});
  return {this, id};
}

Axis Graph::window(const Axis& axis, Reach reach) {
  for (int id = 0; id < static_cast<int>(axes_.size()); ++id)
    if (axes_[id].reach == reach && root(axes_[id].original) == axis.id()) return {this, id};
  const int id = static_cast<int>(axes_.size());
  axes_.push_back({axis.name() + " window", reach(axis.extent()), id, axis.id(), reach});
  return {this, id};
}

int Graph::root(int axis) const { return axes_[axis].parent; }

void Graph::join(const Axis& a, const Axis& b, std::string_view who) {
  for (const Axis& axis : {a, b})
    if (&axis.graph() != this)
      throw std::invalid_argument("[" + std::string(who) + "] axis " + axis.name() +
                                  " belongs to another graph");
  if (a == b) return;
  if (a.extent() != b.extent())
    throw std::invalid_argument("[" + std::string(who) + "] axis " + a.name() + " has extent " +
                                std::to_string(a.extent()) + " and axis " + b.name() + " has extent " +
                                std::to_string(b.extent()) + "; they must be equal to be used as one");
  const auto [older, younger] = std::minmax({a.id(), b.id()});
  // All of the class at once: axes are joined a few times, and asked for their class all the time.
  for (AxisInfo& axis : axes_)
    if (axis.parent == younger) axis.parent = older;
  if (axes_[older].along < 0 && axes_[younger].along >= 0 && root(axes_[younger].along) != older)
    axes_[older].along = axes_[younger].along;
}

std::vector<Axis> Graph::axes() {
  std::vector<Axis> roots;
  for (int id = 0; id < static_cast<int>(axes_.size()); ++id)
    if (axes_[id].parent == id && axes_[id].original < 0) roots.push_back({this, id});
  return roots;
}

Axes Graph::data_axes() {
  Axes found;
  for (const Axis& axis : axes()) {
    bool input = false, state = false;
    for (int id = 0; id < static_cast<int>(tensors_.size()); ++id) {
      if (!tensor(id).has(axis)) continue;
      input |= tensors_[id].kind == TensorInfo::Kind::input;
      state |= tensors_[id].kind == TensorInfo::Kind::state;
    }
    if (input && !state) found.push_back(axis);
  }
  return found;
}

std::vector<std::string> Graph::layers() const {
  std::vector<std::string> found;
  for (const Node& node : nodes_) {
    std::string layer = node.scope.substr(0, node.scope.find('.'));
    if (!layer.empty() && layer != update_scope && !node.scope.starts_with(gradient_scope) &&
        std::ranges::count(found, layer) == 0)
      found.push_back(std::move(layer));
  }
  return found;
}

std::optional<Axis> Graph::find_axis(std::string_view name) {
  for (int id = 0; id < static_cast<int>(axes_.size()); ++id)
    if (axes_[id].name == name) return Axis{this, id};
  return std::nullopt;
}

std::optional<Tensor> Graph::find(std::string_view name) {
  for (int id = 0; id < static_cast<int>(tensors_.size()); ++id)
    if (tensors_[id].kind != TensorInfo::Kind::value && tensors_[id].name == name) return Tensor{this, id};
  return std::nullopt;
}

Tensor Graph::add(TensorInfo info) {
  for (std::size_t i = 0; i < info.axes.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (info.axes[i] == info.axes[j])
        throw std::invalid_argument("[" + info.name + "] has the axis " + info.axes[i].name() +
                                    " twice; give the second dimension an axis of its own");
  tensors_.push_back(std::move(info));
  return {this, static_cast<int>(tensors_.size()) - 1};
}

Tensor Graph::input(std::string name, DType dtype, Axes axes) {
  if (find(name)) throw std::invalid_argument("[input] the name \"" + name + "\" is taken");
  return add(
      {.name = std::move(name), .dtype = dtype, .axes = std::move(axes), .kind = TensorInfo::Kind::input});
}

Tensor Graph::state(std::string name, DType dtype, Axes axes, Initializer initializer) {
  if (find(name)) throw std::invalid_argument("[state] the name \"" + name + "\" is taken");
  return add({.name = std::move(name),
              .dtype = dtype,
              .axes = std::move(axes),
              .kind = TensorInfo::Kind::state,
              .initializer = initializer});
}

std::vector<Tensor> Graph::emit(const Semantics& semantics, std::any attributes, std::vector<Tensor> inputs,
                                std::vector<OutputSpec> outputs, std::vector<Axes> renamed) {
  std::vector<Tensor> made;
  int producer = static_cast<int>(nodes_.size());
  for (OutputSpec& output : outputs) {
    std::string suffix = outputs.size() == 1 ? "" : "." + std::to_string(made.size());
    made.push_back(add({.name = scope_ + std::string(semantics.name) + suffix,
                        .dtype = output.dtype,
                        .axes = std::move(output.axes),
                        .producer = producer}));
  }
  nodes_.push_back({&semantics, std::move(attributes), std::move(inputs), made, scope_, std::move(renamed)});
  return made;
}

Node Graph::repeat(const Node& node, std::vector<Tensor> inputs) {
  Node made = node;
  made.inputs = std::move(inputs);
  made.scope = std::string(gradient_scope) + node.scope;
  for (Tensor& y : made.outputs) {
    TensorInfo info = y.info();
    info.repeats = y.stream();
    y = add(std::move(info));
  }
  return made;
}

std::vector<Node> Graph::take_nodes_from(int first) {
  std::vector<Node> taken(nodes_.begin() + first, nodes_.end());
  nodes_.erase(nodes_.begin() + first, nodes_.end());
  return taken;
}

Graph::Scope::Scope(Graph& graph, std::string_view name) : graph_(graph), length_(graph.scope_.size()) {
  graph_.scope_ += name;
  if (!name.empty() && !name.ends_with('.')) graph_.scope_ += '.';
}
Graph::Scope::~Scope() { graph_.scope_.resize(length_); }

}  // namespace tegula
