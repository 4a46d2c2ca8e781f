// Listing: what one rank does in one step, as data. Made from graph and plan without StarPU or MPI, for any rank of any
// number of ranks; Program runs it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "framework/graph/graph.hpp"
#include "framework/plan/plan.hpp"

namespace tegula {

struct CompileOptions {
  std::vector<Tensor> outputs;  // values brought to rank 0 at the end of each run
  bool updates = true;          // whether state is updated: false for evaluation
  // Other extents for axes of this program, for instance of a last, smaller batch.
  std::vector<std::pair<Axis, std::int64_t>> extents;
};

// Memory of one tile, or of a partial sum, on this rank.
struct Buffer {
  enum class Kind : std::uint8_t { state, input, value, replica, part } kind;
  int tensor;
  int tile;  // row-major index among the tensor's tiles
  DType dtype;
  TileRegion region;
  int micro_batch = -1;  // that the tile is of; -1: of none
  // The buffer whose memory, of as many bytes, this one takes over: that is gone by then, in the order of the listing, and
  // whatever order tasks run in waits for it. -1: it has its own.
  int memory = -1;

  std::int64_t bytes() const;
};

struct Instruction {
  enum class Kind : std::uint8_t { task, fill, send, receive, fetch, turn, drop } kind;
  int node = -1;             // into Listing::nodes, of tasks
  TaskSpec spec;             // of tasks
  std::vector<int> buffers;  // operands; -1: absent
  int peer = -1;             // of send and receive
  std::int64_t tag = -1;     // of what is sent, unique to it within a step
  int priority = 0;
  double time = 0;  // as the plan's schedule has it: the order of a listing
  // Of a task: it waits for the turn before it, and the turn behind it for the task.
  bool in_turn = false;
};

struct Listing {
  std::vector<Node> nodes;
  std::vector<Buffer> buffers;
  std::vector<Instruction> instructions;

  // The buffer whose memory `buffer` has: its own, or an earlier one's. -1 for -1.
  int memory(int buffer) const {
    return buffer < 0 || buffers[buffer].memory < 0 ? buffer : buffers[buffer].memory;
  }

  // Per run of this rank.
  std::int64_t tasks = 0;
  double flops = 0;
  std::int64_t sent_bytes = 0, received_bytes = 0;
  std::int64_t state_bytes = 0;    // kept between runs
  std::int64_t peak_bytes = 0;     // of all tiles, with state
  std::int64_t scratch_bytes = 0;  // of each worker, at most
};

// What rank `rank` of `ranks` does. Throws std::invalid_argument for plans that do not fit graph or ranks.
Listing lower(Graph& graph, const Plan& plan, int rank, int ranks, const CompileOptions& options);

// Cutting tensors into tiles and placing them: the same function of plan and graph on every rank.
class Layout {
 public:
  Layout(Graph& graph, const Plan& plan, int ranks, const CompileOptions& options);

  std::int64_t extent(const Axis& axis) const;
  std::vector<std::int64_t> extents(const Axes& axes) const;
  std::int64_t tile_size(const Axis& axis) const;
  std::int64_t tiles(const Axis& axis) const;
  std::int64_t tiles(const Axes& axes) const;  // product
  TileRegion region(const Axes& axes, std::int64_t tile) const;
  // Owner of a tile: the stage of its tensor and sharded axes say it for their mesh dimensions; along the others tiles are
  // dealt out in turn, equal axes alike, so that a parameter, its gradient and its moments meet on one rank.
  int owner(const Tensor& tensor, std::int64_t tile) const;
  int owner(const Tensor& tensor, std::span<const std::int64_t> index) const;  // by tile along each axis
  // Which part of an axis each of its tiles belongs to, along mesh dimensions.
  struct Shards {
    std::vector<int> along;           // mesh dimensions, outermost first
    std::vector<std::int64_t> first;  // by tile: the first one of its part
    std::vector<int> ranks;           // by tile: what the coordinates of its part add to a rank
  };
  // How the tiles of a tensor lie on ranks: an owner is the sum of what axes and stage say and of what is dealt out.
  struct Spread {
    std::vector<const Shards*> axes;  // by axis of the tensor
    std::vector<std::int64_t> tiles;  // the same
    struct Dealt {
      int dimension, size, stride;
    };
    std::vector<Dealt> dealt;     // along the other mesh dimensions, innermost first
    std::int64_t turn = 0;        // where dealing begins
    int batch = -1;               // which axis has micro-batches; -1: none
    const int* places = nullptr;  // by micro-batch, what the stage adds; null: there are no stages
  };
  const Spread& spread(const Tensor& tensor) const;
  // Where a sum into a tile of `result`, which `owner` has, is begun: beside tile `tile` of the summed axis, if that lies
  // along mesh dimensions which `result` leaves open.
  int moved(int owner, const Tensor& result, const Axis& axis, std::int64_t tile) const;
  // The mesh dimensions that it is moved along.
  std::vector<int> moves(const Tensor& result, const Axis& axis) const;
  int without(int rank, const std::vector<int>& dimensions) const;  // at coordinate 0 along these
  std::optional<int> stage_dimension() const { return plan_.stage_dimension(); }
  bool is_micro_batch(const Axis& axis) const {
    return !axis.reach() && plan_.is_micro_batch(axis.original());
  }
  int micro_batches() const { return pipeline_.micro_batches; }
  int micro_batch(std::int64_t tile) const { return micro_batches_[tile]; }  // of a tile of their axis

  // Takes note of nodes, in their order: which stage their tensors belong to, and which are parameters.
  template <class Nodes>
  void learn(const Nodes& nodes) {
    std::vector<const Node*> all;
    for (const Node& node : nodes) all.push_back(&node);
    learn(all);
  }
  int stage(const Tensor& tensor) const { return std::max(places_[tensor.id()].stage, 0); }
  double time(int stage, int micro_batch, Pass pass) const;  // when the stage works on it
  // Of a tile of a tensor with these axes; -1: of none.
  int micro_batch(const Axes& axes, std::int64_t tile) const;
  bool has_micro_batches(int tensor) const;
  bool in_order() const { return plan_.has_micro_batches() && plan_.schedule().in_order; }
  bool saves_memory() const { return plan_.has_micro_batches() || plan_.recomputes(); }
  int group_size(const Axes& summed) const;  // in tuples of tiles of the summed axes, row-major

 private:
  struct Cut {
    std::int64_t extent = -1, size = 0, tiles = 0;  // extent -1: not known yet
  };
  const Cut& cut(const Axis& axis) const;
  struct Place {
    int stage = -1;  // not known
    bool parameter = false;
    int layer = -1;          // number of the outermost scope below
    std::string scope = {};  // of the node that makes it, or is the first to read it, without the gradients'
  };
  int coordinate(int rank, int dimension) const;
  int with_coordinate(int rank, int dimension, int coordinate) const;
  const std::vector<int>& dimensions(const Tensor& tensor, const Axis& axis) const;
  Shards divide(const Axis& axis, const std::vector<int>& along) const;
  const Shards& shards(const Axis& axis, bool parameters) const;
  const Shards& shards(const Tensor& tensor, const Axis& axis, bool parameters) const;
  void learn(const std::vector<const Node*>& nodes);
  void check(const Tensor& tensor) const;
  void check_schedule();
  Graph& graph_;
  const Plan& plan_;
  int ranks_;
  std::vector<std::pair<int, std::int64_t>> extents_;
  std::vector<std::pair<std::string, int>> mesh_;  // one dimension where the plan has none
  mutable std::vector<Cut> cuts_;                  // by axis; expansions make more of those
  std::vector<int> strides_;                       // of the mesh dimensions, in ranks
  std::vector<Place> places_;                      // by tensor
  std::vector<Shards> shards_[2];                  // of activations and of parameters, by axis
  std::vector<Shards> overrides_;                  // as the plan has them
  std::vector<int> micro_batches_;  // by tile of their axis: the number within its share of the batch
  Pipeline pipeline_;
  std::vector<int> places_of_stages_;    // by stage and micro-batch: what the place adds to a rank
  mutable std::vector<Spread> spreads_;  // by tensor; of those asked for
};

// Lets gradients compute anew, just before they need it, what the plan does not keep of forward nodes.
std::vector<Node> recompute(Graph& graph, const std::vector<Node>& nodes, const Plan& plan,
                            const Layout& layout, const std::vector<Tensor>& keep);

// Replaces contraction + bias + activation, and contraction + activation slope, by one node, where the sum over
// tiles is a single chain. Leaves out halos that would only copy tiles. Keeps the outputs in `keep`.
void fuse_epilogues(std::vector<Node>& nodes, const Layout& layout, const std::vector<Tensor>& keep);

// Of a listing that is in order: turns, for schedules that ask for them.
void take_turns(Listing& listing);
// Priorities of its instructions; drops of buffers after their last use, memory handed on, and
// the predictions.
void prioritize(Listing& listing);
void drop_after_last_use(Listing& listing, const Layout& layout);

}  // namespace tegula
