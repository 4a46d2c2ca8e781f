// The symbolic level: axes, tensors and the ops between them. Nothing here knows of tiles in memory, StarPU or
// MPI; a Plan says how axes are cut and placed, compile() turns graph and plan into tasks.
#pragma once

#include <any>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "kernels/op.hpp"

namespace tegula {

class Graph;
struct TensorInfo;
struct Node;
struct Semantics;

// How many elements of x the n outputs of a sliding window read, from the first to the last.
struct Reach {
  std::int64_t stride, kernel;
  std::int64_t operator()(std::int64_t n) const { return (n - 1) * stride + kernel; }
  friend bool operator==(const Reach&, const Reach&) = default;
};

// A named dimension class: every tensor that has the axis is cut in the same way along it. Axes that an op couples
// are joined and equal from then on.
class Axis {
 public:
  Axis() = default;
  const std::string& name() const;
  std::int64_t extent() const;
  int id() const;                      // the same for joined axes
  Axis original() const;               // of a twin or a window (Graph::twin, window); else the axis itself
  std::optional<Reach> reach() const;  // of a window
  std::optional<Axis> along() const;   // what it was made along (Graph::axis)
  Graph& graph() const { return *graph_; }
  friend bool operator==(const Axis& a, const Axis& b) { return a.graph_ == b.graph_ && a.id() == b.id(); }

 private:
  friend class Graph;
  Axis(Graph* graph, int id) : graph_(graph), id_(id) {}
  Graph* graph_ = nullptr;
  int id_ = -1;
};

using Axes = std::vector<Axis>;

class Tensor {
 public:
  Tensor() = default;  // no tensor: an absent optional operand, a gradient that is zero
  explicit operator bool() const { return graph_ != nullptr; }
  const std::string& name() const;
  DType dtype() const;
  const Axes& axes() const;
  bool has(const Axis& axis) const;
  std::int64_t elements() const;  // product of the extents
  std::string describe() const;   // "image (batch 256, pixel 784) f32", for messages
  int id() const { return id_; }
  int stream() const;  // of random numbers: the id, or that of the tensor that this one repeats
  Graph& graph() const { return *graph_; }
  const TensorInfo& info() const;
  friend bool operator==(const Tensor&, const Tensor&) = default;

 private:
  friend class Graph;
  Tensor(Graph* graph, int id) : graph_(graph), id_(id) {}
  Graph* graph_ = nullptr;
  int id_ = -1;
};

// How the elements of a parameter start: a function of (seed, tensor, global element index) alone, so that it does
// not depend on tiles or ranks.
struct Initializer {
  enum class Kind : std::uint8_t { fill, uniform, normal } kind = Kind::fill;
  double a = 0, b = 0;  // fill: value; uniform: low, high; normal: mean, standard deviation

  static Initializer fill(double value) { return {Kind::fill, value, 0}; }
  static Initializer uniform(double low, double high) { return {Kind::uniform, low, high}; }
  static Initializer normal(double mean, double stddev) { return {Kind::normal, mean, stddev}; }
};

struct TensorInfo {
  enum class Kind : std::uint8_t {
    input,
    state,
    value
  };  // bound per step, kept between steps, made by a node
  std::string name;
  DType dtype;
  Axes axes;
  Kind kind = Kind::value;
  Initializer initializer;  // of state
  int producer = -1;        // node, of a value
  int repeats = -1;         // the tensor that this is computed like, once more
};

// An op applied to tensors. Inputs and outputs stand in the order of the kernel's operands; an absent optional operand is
// an empty Tensor. A node without outputs updates, in place, those inputs (state) that its kernel writes.
struct Node {
  const Semantics* semantics = nullptr;
  std::any attributes;
  std::vector<Tensor> inputs, outputs;
  std::string scope;  // of the layer that made it, for traces and messages
  // Axes of the operands, inputs first, as this node calls them, where it meets one tensor's axis as two: attention pairs
  // tiles of a sequence as queries with tiles of the same sequence as keys. Empty: as the tensors have them.
  std::vector<Axes> renamed;

  const Axes& axes(std::size_t operand) const {
    if (!renamed.empty()) return renamed[operand];
    return (operand < inputs.size() ? inputs[operand] : outputs[operand - inputs.size()]).axes();
  }
  template <class A>
  const A& as() const {
    return *std::any_cast<A>(&attributes);
  }
};

// One task as a kernel sees it.
struct TaskSpec {
  const OpInfo* op = nullptr;
  DType dtype{};
  std::vector<std::byte> attributes;

  template <class Op>
  static TaskSpec of(const Op& op, DType dtype) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&op);
    return {&op_info<Op>(), dtype, {bytes, bytes + sizeof(Op)}};
  }
};

// The part of a tensor that a tile holds, or of a tile.
struct TileRegion {
  std::vector<std::int64_t> begin, extent;
  friend bool operator<(const TileRegion& a, const TileRegion& b) {
    return std::tie(a.begin, a.extent) < std::tie(b.begin, b.extent);
  }
};

// The tuple of tiles that a task works on: along each axis a range of the tensor.
class TileRange {
 public:
  virtual std::int64_t begin(const Axis& axis) const = 0;
  virtual std::int64_t extent(const Axis& axis) const = 0;       // of the tile
  virtual std::int64_t full_extent(const Axis& axis) const = 0;  // of the tensor, in this program
  virtual std::int64_t tile(const Axis& axis) const = 0;         // its number along the axis
  // Whether the first operand holds no more of its tile than Semantics::part says.
  virtual bool has_part() const { return false; }
  // Place in the chain of tasks that accumulates into one output tile.
  virtual bool first() const = 0;
  virtual bool last() const = 0;

  std::vector<std::int64_t> extents(const Axes& axes) const;
  std::int64_t elements(const Axes& axes) const;

 protected:
  ~TileRange() = default;
};

// How partial results over tiles of a summed axis come together, always in the same order.
enum class Combine : std::uint8_t { sum, max, log_sum_exp };

// What the graph knows of an op, beside its kernel: one constant per op. From it follow lowering (one task per tuple of
// tiles; axes that no output has are accumulated over), autodiff and the generated graph tests.
struct Semantics {
  std::string_view name;
  // The kernel and attributes for one tuple of tiles.
  TaskSpec (*task)(const Node& node, const TileRange& range);
  // Gradients by the inputs, given those by the outputs (empty: zero); empty where none flows. A gradient may lack axes
  // of its tensor: it is then constant along them. Null: the op stops gradients.
  std::vector<Tensor> (*gradient)(const Node& node, std::span<const Tensor> outputs) = nullptr;
  // Axes that the kernel needs in one piece. Null: none.
  Axes (*whole)(const Node& node) = nullptr;
  // The outputs computed by other ops, for plans that cut an axis of `whole`. Null: such plans are refused.
  std::vector<Tensor> (*expand)(const Node& node) = nullptr;
  // Null: sum.
  Combine (*combine)(const Node& node) = nullptr;
  // Whether sums over tiles are a single chain, whatever the plan's groups: what the kernel carries on cannot be combined.
  bool chain = false;
  // Whether a tuple of tiles contributes nothing, so that it gets no task. Null: all contribute.
  bool (*skip)(const Node& node, const TileRange& range) = nullptr;
  // What a task reads of its first operand, relative to its tile: a rank that has not the tile is sent only that. Null: all.
  TileRegion (*part)(const Node& node, const TileRange& range) = nullptr;
  // Takes the only user of the output (bias, activation, slope) into the node, which `node` then is. Called while the sum
  // over tiles is a single chain. Returns false where it cannot. Null: never.
  bool (*absorb)(Node& node, const Node& user) = nullptr;
  // A small graph around the op for the generated tests: returns the tensors of interest, built from parameters of dtype
  // f64 with ragged extents. Null: another op's example covers it.
  std::vector<Tensor> (*example)(Graph& graph) = nullptr;
};

// All semantics with an example, for the generated tests: entered by one constant per op, in its source file.
std::span<const Semantics* const> registered_semantics();
struct RegisterSemantics {
  explicit RegisterSemantics(const Semantics& semantics);
};

class Graph {
 public:
  Graph() = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // `along`: the axis that it goes along with, place by place, as rows of a convolution's output do with those of its input;
  // for plans that cut both alike. Throws std::invalid_argument for a negative extent.
  Axis axis(std::string name, std::int64_t extent, std::optional<Axis> along = {});
  // An axis that is cut as `axis` is, but is another: see Node::renamed. One for each axis. It is not among axes().
  Axis twin(const Axis& axis);
  // What windows that slide over x read of it, tile by tile of their outputs, which have `axis`: tile t is where that of `axis`
  // is, and has reach(its extent) elements. Tiles overlap in x, so the extent of all depends on how `axis` is cut; without
  // a cut it is reach(axis.extent()). One for each axis and reach. It is not among axes().
  Axis window(const Axis& axis, Reach reach);
  // Makes both one axis. Throws std::invalid_argument if the extents differ; `who` starts the message.
  void join(const Axis& a, const Axis& b, std::string_view who = "join");

  Tensor input(std::string name, DType dtype, Axes axes);
  // State is kept between steps: parameters and what optimizers remember. Names are unique (std::invalid_argument).
  Tensor state(std::string name, DType dtype, Axes axes, Initializer initializer = {});

  // Appends a node; for op implementations. Outputs take their names from the op and its scope.
  struct OutputSpec {
    DType dtype;
    Axes axes;
  };
  std::vector<Tensor> emit(const Semantics& semantics, std::any attributes, std::vector<Tensor> inputs,
                           std::vector<OutputSpec> outputs, std::vector<Axes> renamed = {});
  // The node once more, on other inputs, with outputs of its own; belongs to the gradient. Not among nodes().
  Node repeat(const Node& node, std::vector<Tensor> inputs);
  // Removes the nodes from `first` on and returns them: compile() places expansions where they belong.
  std::vector<Node> take_nodes_from(int first);

  const std::deque<Node>& nodes() const { return nodes_; }
  const std::deque<TensorInfo>& tensors() const { return tensors_; }
  Tensor tensor(int id) { return {this, id}; }
  std::optional<Tensor> find(std::string_view name);  // an input or state
  std::vector<Axis> axes();                           // one of each class, in order of creation
  std::optional<Axis> find_axis(std::string_view name);
  Axes data_axes();  // of inputs and of no state: those of a step's data, the batch first
  // Outermost scopes of forward nodes, in the order of their first.
  std::vector<std::string> layers() const;

  std::uint64_t seed() const { return seed_; }
  void seed(std::uint64_t seed) { seed_ = seed; }

  // Names of nodes made while a Scope lives start with its path: its name, or several with dots between them.
  class Scope {
   public:
    Scope(Graph& graph, std::string_view name);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Graph& graph_;
    std::size_t length_;
  };
  const std::string& scope() const { return scope_; }

 private:
  friend class Axis;
  friend class Tensor;
  struct AxisInfo {
    std::string name;
    std::int64_t extent;
    int parent;                       // the axis that stands for its class
    int original = -1;                // an axis, of a twin or window
    std::optional<Reach> reach = {};  // of a window
    int along = -1;                   // an axis, or none
  };
  Tensor add(TensorInfo info);
  int root(int axis) const;

  std::vector<AxisInfo> axes_;
  std::deque<TensorInfo> tensors_;  // deques: references stay valid while nodes are added
  std::deque<Node> nodes_;
  std::string scope_;
  std::uint64_t seed_ = 0;
};

// What the scope of a gradient's nodes starts with; the scope of the node that it is the gradient of follows.
inline constexpr std::string_view gradient_scope = "gradient.";
// And that of an optimizer's nodes, without the dot.
inline constexpr std::string_view update_scope = "update";

// d loss / d each of `wrt`, emitted as ops of the graph, so that they can be differentiated again. loss must be a scalar (no
// axes). A tensor that loss does not depend on gets an empty Tensor. A result may lack axes along which it is
// constant: expand it with broadcast_to() where that matters.
std::vector<Tensor> gradients(const Tensor& loss, std::span<const Tensor> wrt);

// Gradients of a node from those of the ops that it expands to, for Semantics::gradient.
std::vector<Tensor> gradients_of_expansion(const Node& node, std::span<const Tensor> outputs);

}  // namespace tegula
