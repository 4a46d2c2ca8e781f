// Plan: everything about where and in which pieces a graph runs, and nothing about what it computes.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "framework/graph/graph.hpp"

namespace tegula {

class Runtime;

// Same tiling (tile sizes and groups), same bits: mesh, shards and the machine do not change results.
class Plan {
 public:
  // Tile sizes that give every worker of every rank work, in tasks long enough to hide StarPU's cost of some microseconds
  // each: the fastest of a few tilings, by estimate. The batch (the first axis of inputs that no state has) is sharded
  // over all ranks. Depends on the number of ranks and workers: state the tiles where bits are to stay the same.
  static Plan automatic(Graph& graph, const Runtime& runtime);
  static Plan automatic(Graph& graph, int ranks, int workers_per_rank);

  // Cuts the axis into tiles of `size` (the last may be smaller). A size beyond the extent means one tile. Throws
  // std::invalid_argument for a size below 1.
  Plan& tile(const Axis& axis, std::int64_t size);
  // Sums over tiles of the axis are chains inside groups of `tiles` consecutive tiles, then a balanced binary tree over
  // groups. Without it: group_by_default.
  Plan& group(const Axis& axis, int tiles);
  // The mesh of ranks, row-major: {{"data", 2}, {"tensor", 2}}. Must multiply to the number of ranks when compiled.
  Plan& mesh(std::vector<std::pair<std::string, int>> dimensions);
  // Tiles of the axis go to consecutive ranks along the mesh dimension. Throws std::invalid_argument if the mesh has no
  // such dimension or the axis lies along another. Two axes of one tensor need two dimensions (checked when compiled).
  Plan& shard(const Axis& axis, const std::string& dimension);
  // Works off the tiles of the axis one behind the other, as far as tasks depend on them: gradient accumulation, where it is
  // the batch. Activations of one tile are gone before the next one's come; the sums are in the order they always are.
  Plan& micro_batches(const Axis& axis);
  // Whether bias, activation and activation slopes join the contraction before them (on by default).
  Plan& fuse(bool on);

  std::int64_t tile_size(const Axis& axis) const;
  int group_size(const Axis& axis, std::int64_t tiles) const;
  const std::vector<std::pair<std::string, int>>& mesh() const { return mesh_; }
  std::optional<int> shard_dimension(const Axis& axis) const;  // index into mesh()
  bool fuse() const { return fuse_; }
  bool is_micro_batch(const Axis& axis) const { return micro_batches_ == axis.id(); }

  // At most eight groups: enough for eight ranks to sum without waiting for each other, and a rule that knows
  // tiles only.
  static int group_by_default(std::int64_t tiles) { return static_cast<int>((tiles + 7) / 8); }

  std::string describe(Graph& graph) const;  // one line per axis and mesh dimension

 private:
  std::map<int, std::int64_t> tiles_;  // by axis id
  std::map<int, int> groups_;
  std::map<int, int> shards_;
  std::vector<std::pair<std::string, int>> mesh_;
  bool fuse_ = true;
  int micro_batches_ = -1;  // axis id; -1: none
};

}  // namespace tegula
