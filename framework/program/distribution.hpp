// Distribution: into which tasks each node falls, on which ranks, and who reads the results. A function of graph and plan that
// any rank can ask about any tile, so that ranks agree on messages without talking, and without walking each other's tasks.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "framework/program/listing.hpp"

namespace tegula {

// Gradients by inputs are those that the gradients of another stage are computed from.
std::vector<Pass> passes(const std::vector<Node>& nodes, const Layout& layout);

// One tuple of tiles of a node's axes.
class Tuple final : public TileRange {
 public:
  Tuple(const Layout& layout, const Axes& axes) : layout_(layout), axes_(axes), index(axes.size()) {}

  void set_chain(bool first, bool last) { first_ = first, last_ = last; }
  std::int64_t begin(const Axis& axis) const override { return tile(axis) * layout_.tile_size(axis); }
  std::int64_t extent(const Axis& axis) const override {
    return std::min(layout_.tile_size(axis), layout_.extent(axis) - begin(axis));
  }
  std::int64_t full_extent(const Axis& axis) const override { return layout_.extent(axis); }
  void set_part(bool part) { part_ = part; }
  bool has_part() const override { return part_; }
  bool first() const override { return first_; }
  bool last() const override { return last_; }

  std::int64_t tile(const Axis& axis) const override {
    return index[std::ranges::find(axes_, axis) - axes_.begin()];
  }

 private:
  const Layout& layout_;
  const Axes& axes_;
  bool part_ = false, first_ = true, last_ = true;

 public:
  std::vector<std::int64_t> index;  // by axis
};

// When something happens, by micro-batch or for all alike.
class Times {
 public:
  explicit Times(double value = 0) : values_{value} {}
  explicit Times(std::vector<double> values) : values_(std::move(values)) {}
  double at(int micro_batch) const { return values_[values_.size() == 1 ? 0 : micro_batch]; }
  double latest() const { return *std::ranges::max_element(values_); }
  void at_least(const Times& other);

 private:
  std::vector<double> values_;
};

// Contents of a tile. Those of state are overwritten: each update makes another version.
struct Value {
  int tensor;
  std::int64_t tile;
  int version = 0;
  friend bool operator<(const Value& a, const Value& b) {
    return std::tie(a.tensor, a.tile, a.version) < std::tie(b.tensor, b.tile, b.version);
  }
};

class Distribution {
 public:
  using Choice =
      std::optional<std::span<const std::int64_t>>;  // of tiles along an axis: these; or, by default, all

  Distribution(Graph& graph, const Layout& layout, const std::vector<Node>& nodes, std::vector<Pass> passes,
               const std::vector<Tensor>& outputs, int ranks);

  // How a node falls into tasks: one for each tuple of tiles of its axes. Those that add to one tile are chains, one in each group
  // of the summed tuples, and the sums of groups come together in a balanced binary tree.
  struct Work {
    Axes axes;                              // those of what is written, then those summed over
    std::vector<std::int64_t> tiles;        // along each
    std::size_t written = 0;                // how many axes are
    std::vector<std::vector<int>> operand;  // by operand, the places of its axes among these
    std::vector<int> updated;               // operands: states that it changes, if it has no outputs
    int placed = 0;  // the operand whose owner runs the tasks: the output, or the first updated
    std::int64_t chain = 1, group = 1;  // summed tuples, in all and of a group
    Combine combine = Combine::sum;
    std::vector<int>
        moved_along;  // mesh dimensions along which a group has a place of its own, whoever owns the tile
    std::vector<int> moved;           // by group: what that place adds to a rank
    int batch = -1;                   // which axis has micro-batches
    Times times;                      // of tasks
    std::vector<double> group_times;  // of the last link, where micro-batches are summed over
    std::int64_t first_part = 0;      // number of what its first tuple reads, where that is a part of a tile

    std::int64_t tile_of(std::size_t i, std::span<const std::int64_t> index) const {  // of operand i
      std::int64_t tile = 0;
      for (const int axis : operand[i]) tile = tile * tiles[axis] + index[axis];
      return tile;
    }
    void set_written(std::span<std::int64_t> index, std::int64_t tile) const { set(index, 0, written, tile); }
    void set_summed(std::span<std::int64_t> index, std::int64_t tuple) const {
      set(index, written, axes.size(), tuple);
    }
    std::int64_t written_tile(std::span<const std::int64_t> index) const { return linear(index, 0, written); }
    std::int64_t summed_tuple(std::span<const std::int64_t> index) const {
      return linear(index, written, axes.size());
    }

   private:
    void set(std::span<std::int64_t> index, std::size_t begin, std::size_t end, std::int64_t of) const {
      for (std::size_t i = end; i-- > begin; of /= tiles[i]) index[i] = of % tiles[i];
    }
    std::int64_t linear(std::span<const std::int64_t> index, std::size_t begin, std::size_t end) const {
      std::int64_t all = 0;
      for (std::size_t i = begin; i < end; ++i) all = all * tiles[i] + index[i];
      return all;
    }
  };
  const Work& work(int node) const { return works_[node]; }

  // Tiles that the node writes with the help of this rank, in order, and the groups that it runs.
  using VisitTile = std::function<void(std::int64_t tile, std::span<const std::int64_t> groups)>;
  void for_each_tile(int node, int rank, const VisitTile& visit) const;
  // Tiles of a tensor that the rank owns, in order.
  void for_each_tile(const Tensor& tensor, int rank, const std::function<void(std::int64_t)>& visit) const;
  // The summed tuples of a group that add to the tile, in order.
  std::vector<std::int64_t> links(int node, std::int64_t tile, std::int64_t group) const;
  double time(int node, std::span<const std::int64_t> index) const;  // of the task of a tuple

  // What a group has summed up, and then what others have added to it.
  struct Sum {
    std::int64_t group;
    int rank;
    double time;
  };
  struct Addition {
    Sum kept, read;  // read is added to kept
    double time;
  };
  struct Tree {
    std::vector<Addition> additions;  // in order
    Sum result;
  };
  Tree tree(int node, std::int64_t tile) const;

  // The tile as the node reads it: what updates before it have left.
  Value read_by(int node, const Tensor& tensor, std::int64_t tile) const;
  int home(const Value& value) const;        // the rank that has it
  double written(const Value& value) const;  // when all of it has been

  struct Reader {
    int node;  // the first one that reads it there; as many as there are nodes for an output
    int rank;
  };
  // Ranks that a value is sent to, in the order in which they need it.
  std::vector<Reader> readers(const Value& value) const;
  struct PartReader {
    int node;
    int rank;
    TileRegion part;
    std::int64_t number;
  };
  // Ranks that are sent no more than a part, which the first reader there makes known (Semantics::part).
  std::vector<PartReader> part_readers(const Value& value) const;
  std::int64_t number(int node, const Tuple& tuple) const;  // of the part of a tile that the task reads
  // A number that no other value has, nor what another group has summed up of it.
  std::int64_t number(const Value& value, std::int64_t group = -1) const;

 private:
  Work work_of(const Node& node) const;
  void set_times(int node, Pass pass);
  const Tensor& placed(int node) const;
  int rank_of(int node, std::span<const std::int64_t> index, std::int64_t group) const;
  void add_ranks(int node, std::size_t operand, std::int64_t tile, std::vector<int>& ranks) const;
  std::pair<int, int> readers_between(const Value& value) const;
  Choice candidates(const Layout::Spread& spread, std::size_t axis, int rank, bool by_stage) const;
  Choice representatives(const Layout::Spread& spread, std::size_t axis) const;

  Graph& graph_;
  const Layout& layout_;
  const std::vector<Node>& nodes_;
  int ranks_;
  std::vector<Work> works_;
  struct Use {
    int node, operand;
  };
  struct Uses {
    int made_by = -1;
    bool is_output = false;
    std::vector<Use> reads;
    std::vector<int> updates;
    std::vector<Times> written{Times()};  // by version
    Times read;                           // the last version
    std::int64_t first_number = 0;
  };
  std::vector<Uses> uses_;  // by tensor
  using Key = std::pair<const Layout::Shards*, const int*>;
  mutable std::map<std::pair<Key, int>, std::vector<std::int64_t>> candidates_;
  mutable std::map<Key, std::vector<std::int64_t>> representatives_;
  mutable std::vector<int> seen_;  // by rank: the last question that it was part of the answer to
  mutable int question_ = 0;
};

}  // namespace tegula
