// Plan: everything about where and in which pieces a graph runs, and nothing about what it computes.
#pragma once

#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "framework/graph/graph.hpp"
#include "framework/plan/schedule.hpp"

namespace tegula {

class Runtime;

// The start of a scope's path that a pattern with wildcards matches, with as many parts: "block1" of "block1.mlp.tanh" for
// "block*". Empty optional: it matches none.
std::optional<std::string> matching_scope(std::string_view pattern, std::string_view path);

// Which tensors a placement is for. Parameters are states, what is computed from them alone, and the gradients that
// update them.
enum class Placed : std::uint8_t { all, parameters, activations };

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
  // Throws std::invalid_argument for a size below 1 and for more than a million places.
  Plan& mesh(std::vector<std::pair<std::string, int>> dimensions);
  // Tiles of the axis go to consecutive ranks along the mesh dimension, or along the product of several. Throws
  // std::invalid_argument if the mesh has no such dimension, names one twice, or the axis lies along another already. Two
  // axes of one tensor need dimensions of their own (checked when compiled).
  Plan& shard(const Axis& axis, const std::string& dimension, Placed which = Placed::all);
  Plan& shard(const Axis& axis, const std::vector<std::string>& dimensions, Placed which = Placed::all);
  Plan& shard(const Axis& axis, std::initializer_list<std::string> dimensions, Placed which = Placed::all) {
    return shard(axis, std::vector(dimensions),
                 which);  // else {"a", "b"} could be one string's begin and end
  }
  // Another placement for tensors of a scope, whose path may have wildcards ("block*.mlp"): what its nodes make, parameters that it
  // is the first to read, their gradients and moments. Along no dimensions: not sharded there. The last one that matches
  // holds. Throws as shard() does, and for the axis of micro-batches when compiled.
  Plan& shard_within(const std::string& scope, const Axis& axis, const std::vector<std::string>& dimensions,
                     Placed which = Placed::all);
  // How many of the tiles along a mesh dimension each coordinate gets, in proportion: {2, 1} for a rank that is twice as fast as
  // the other. Without it: the same. Throws std::invalid_argument unless there is a positive number for each coordinate.
  Plan& proportions(const std::string& dimension, std::vector<int> of_coordinates);
  // Works off the tiles of the axis, which is the batch, one behind the other or as a schedule says, as far as tasks depend
  // on them. Without stages: gradient accumulation. The sums are in the order they always are.
  Plan& micro_batches(const Axis& axis, Schedule schedule = schedules::sequential());
  // A pipeline along a mesh dimension: the stage of each layer, which is the start of a scope's path, such as "block0" or
  // "block0.mlp". What has no scope goes with what it is computed from. Throws std::invalid_argument if the mesh has no
  // such dimension, a stage is negative or not below 10,000.
  Plan& stages(const std::string& dimension, std::vector<std::pair<std::string, int>> layers);
  // Computes what these scopes make once more when gradients need it, instead of keeping it: what enters a scope and what leaves
  // it is kept. Each path may have wildcards, "block*" or "block*.attention", and is a unit of its own for every scope that it
  // matches; "" is all of the graph. The bits stay.
  Plan& recompute(std::vector<std::string> scopes);
  // Whether bias, activation and activation slopes join the contraction before them (on by default).
  Plan& fuse(bool on);

  // The same tiles and groups without mesh, shards, stages and micro-batches: the same bits.
  Plan on_one_rank() const;

  std::int64_t tile_size(const Axis& axis) const;
  int group_size(const Axis& axis, std::int64_t tiles) const;
  const std::vector<std::pair<std::string, int>>& mesh() const { return mesh_; }
  // Indices into mesh(), outermost first; `parameters`: of tensors that are such.
  const std::vector<int>& shard_dimensions(const Axis& axis, bool parameters) const;
  struct Override {
    std::string scope;
    int axis;  // its id
    Placed which;
    std::vector<int> dimensions;
  };
  const std::vector<Override>& overrides() const { return overrides_; }
  const std::vector<int>& proportions(int dimension) const { return proportions_[dimension]; }
  bool fuse() const { return fuse_; }
  bool is_micro_batch(const Axis& axis) const { return micro_batches_ == axis.id(); }
  bool has_micro_batches() const { return micro_batches_ >= 0; }
  bool recomputes() const { return !recomputed_.empty(); }
  // The scope that is recomputed as a unit with others of this path; empty optional: kept.
  std::optional<std::string> recomputed(std::string_view scope) const;
  const Schedule& schedule() const { return schedule_; }
  std::optional<int> stage_dimension() const { return stage_dimension_; }
  int stages() const { return stages_; }
  const std::vector<std::pair<std::string, int>>& layers() const { return layers_; }
  std::optional<int> stage_of(std::string_view scope) const;

  // At most eight groups: enough for eight ranks to sum without waiting for each other, and a rule that knows
  // tiles only.
  static int group_by_default(std::int64_t tiles) { return static_cast<int>((tiles + 7) / 8); }

  std::string describe(Graph& graph) const;  // one line per axis and mesh dimension

 private:
  std::map<int, std::int64_t> tiles_;  // by axis id
  std::map<int, int> groups_;
  std::map<int, std::vector<int>> shards_[2];  // of activations, of parameters
  std::vector<Override> overrides_;
  std::vector<std::pair<std::string, int>> mesh_;
  std::vector<std::vector<int>> proportions_;  // by mesh dimension and coordinate
  bool fuse_ = true;
  int micro_batches_ = -1;  // axis id; -1: none
  Schedule schedule_ = schedules::sequential();
  std::optional<int> stage_dimension_;
  int stages_ = 1;
  std::vector<std::pair<std::string, int>> layers_;
  std::vector<std::string> recomputed_;

  int dimension(const std::string& name, const std::string& what) const;
  std::vector<int> dimensions(const Axis& axis, const std::vector<std::string>& names) const;
};

}  // namespace tegula
