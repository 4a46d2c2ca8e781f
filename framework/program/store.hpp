// Store: the state of a graph (parameters, moments) on this rank, shared by the programs compiled from it.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "framework/program/listing.hpp"
#include "framework/runtime/runtime.hpp"
#include "framework/tile/tile.hpp"

namespace tegula {

struct Store {
  // Makes and initialises the tiles that this rank owns.
  Store(Graph& graph, const Plan& plan, Runtime& runtime);
  // Takes over the state of another store: see Program::move_to.
  Store(Store& from, const Plan& plan);

  Layout layout(const CompileOptions& options = {}) const;
  void check_moved(const char* what) const;
  // See Program.
  std::vector<double> read(const Tensor& state) const;
  void write(const Tensor& state, std::span<const double> values);
  std::int64_t visit(const Tensor& state,
                     const std::function<void(const TileRegion& region, const void* data)>& look) const;
  void fill(const Tensor& state, const std::function<void(const TileRegion& region, void* data)>& filler);

  Graph* graph;
  Plan plan;
  Runtime* runtime;
  std::map<std::pair<int, std::int64_t>, Tile> tiles;  // by tensor and index of the tile
  std::int64_t updates = 0;                            // runs so far that updated state
  std::uint64_t next_sequence = 0;                     // of tasks, over all programs
  bool moved = false;                                  // to another store

 private:
  std::int64_t tag(const Tensor& state, std::int64_t tile) const;  // of messages outside steps
  void check(const char* what, const Tensor& state) const;

  std::int64_t first_tag_;
};

}  // namespace tegula
