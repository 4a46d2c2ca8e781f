#include "framework/program/store.hpp"

#include <limits>
#include <stdexcept>

#include "framework/program/block.hpp"
#include "framework/tile/submit.hpp"
#include "kernels/random.hpp"

namespace tegula {

namespace {

void initialize(Tile& tile, const Tensor& tensor, const std::vector<std::int64_t>& extents,
                const TileRegion& region) {
  const Initializer& start = tensor.info().initializer;
  RandomStream stream{tensor.graph().seed(), static_cast<std::uint64_t>(tensor.id()), 0};
  if (start.kind == Initializer::Kind::uniform) {
    submit::op(Uniform{start.a, start.b, stream, {region.extent, region.begin, extents}}, tile);
  } else if (start.kind == Initializer::Kind::normal) {
    submit::op(Normal{start.a, start.b, stream, {region.extent, region.begin, extents}}, tile);
  } else {
    visit_dtype(tensor.dtype(), [&]<class T>() {
      tile.write(std::vector<T>(static_cast<std::size_t>(tile.elements()), static_cast<T>(start.a)));
    });
  }
}

}  // namespace

Store::Store(Graph& g, const Plan& p, Runtime& r)
    : graph(&g), plan(p), runtime(&r), first_tag_(r.reserve_tags()) {
  Layout all = layout();
  for (int id = 0; id < static_cast<int>(g.tensors().size()); ++id) {
    Tensor tensor = g.tensor(id);
    if (tensor.info().kind != TensorInfo::Kind::state) continue;
    for (std::int64_t i = 0; i < all.tiles(tensor.axes()); ++i) {
      if (all.owner(tensor, i) != r.rank()) continue;
      TileRegion region = all.region(tensor.axes(), i);
      Tile& tile = tiles.emplace(std::pair(id, i), Tile(r, region.extent, tensor.dtype())).first->second;
      initialize(tile, tensor, all.extents(tensor.axes()), region);
    }
  }
}

Store::Store(Store& from, const Plan& p)
    : graph(from.graph),
      plan(p),
      runtime(from.runtime),
      updates(from.updates),
      next_sequence(from.next_sequence),
      first_tag_(runtime->reserve_tags()) {
  const Layout before = from.layout(), after = layout();
  for (const Axis& axis : graph->axes())
    if (before.tile_size(axis) != after.tile_size(axis) ||
        before.group_size({axis}) != after.group_size({axis}))
      throw std::invalid_argument(
          "[move] axis " + axis.name() + " is in tiles of " + std::to_string(before.tile_size(axis)) +
          ", summed in groups of " + std::to_string(before.group_size({axis})) + ", and in the new plan of " +
          std::to_string(after.tile_size(axis)) + " and " + std::to_string(after.group_size({axis})) +
          "; state moves between plans of the same tiles and groups, to others by way of a checkpoint");
  runtime->wait();
  const int rank = runtime->rank();
  for (int id = 0; id < static_cast<int>(graph->tensors().size()); ++id) {
    const Tensor tensor = graph->tensor(id);
    if (tensor.info().kind != TensorInfo::Kind::state) continue;
    for (std::int64_t i = 0; i < after.tiles(tensor.axes()); ++i) {
      const int old_owner = before.owner(tensor, i), owner = after.owner(tensor, i);
      if (old_owner == rank && owner == rank) {
        tiles[{id, i}] = std::move(from.tiles.at({id, i}));
      } else if (old_owner == rank) {
        submit::send(*runtime, from.tiles.at({id, i}), owner, tag(tensor, i));
      } else if (owner == rank) {
        tiles[{id, i}] = Tile(*runtime, after.region(tensor.axes(), i).extent, tensor.dtype());
        submit::receive(*runtime, tiles.at({id, i}), old_owner, tag(tensor, i));
      }
    }
  }
  runtime->wait();
  from.tiles.clear();
  from.moved = true;
}

std::int64_t Store::tag(const Tensor& state, std::int64_t tile) const {
  return first_tag_ + (std::int64_t{state.id()} << 24) + tile;
}

void Store::check_moved(const char* what) const {
  if (moved)
    throw std::logic_error("[" + std::string(what) +
                           "] the state has moved to another plan: use the program that move_to() returned");
}

void Store::check(const char* what, const Tensor& tensor) const {
  check_moved(what);
  if (!tensor)
    throw std::invalid_argument(std::string("[") + what + "] no tensor is given; a state is needed");
  if (tensor.info().kind != TensorInfo::Kind::state)
    throw std::invalid_argument(std::string("[") + what + "] " + tensor.describe() +
                                " is not a state of the graph");
}

Layout Store::layout(const CompileOptions& options) const { return {*graph, plan, runtime->size(), options}; }

std::vector<double> Store::read(const Tensor& state) const {
  check("read", state);
  Layout all = layout();
  std::vector<std::int64_t> extents = all.extents(state.axes());
  std::vector<double> values(runtime->rank() == 0 ? product(extents) : 0);
  for (std::int64_t i = 0; i < all.tiles(state.axes()); ++i) {
    int owner = all.owner(state, i);
    if (owner != 0 && owner == runtime->rank())
      submit::send(*runtime, tiles.at({state.id(), i}), 0, tag(state, i));
    if (runtime->rank() != 0) continue;
    TileRegion region = all.region(state.axes(), i);
    Tile replica;
    if (owner != 0) {
      replica = Tile(*runtime, region.extent, state.dtype());
      submit::receive(*runtime, replica, owner, tag(state, i));
    }
    const Tile& tile = owner == 0 ? tiles.at({state.id(), i}) : replica;
    visit_dtype(state.dtype(), [&]<class T>() {
      std::vector<T> part = tile.read<T>();
      place_block(part.data(), region, extents, values.data());
    });
  }
  return values;
}

void Store::write(const Tensor& state, std::span<const double> values) {
  check("write", state);
  if (static_cast<std::int64_t>(values.size()) != state.elements())
    throw std::invalid_argument("[write] " + state.describe() + " has " + std::to_string(state.elements()) +
                                " elements, got " + std::to_string(values.size()));
  Layout all = layout();
  for (std::int64_t i = 0; i < all.tiles(state.axes()); ++i) {
    auto tile = tiles.find({state.id(), i});
    if (tile == tiles.end()) continue;
    TileRegion region = all.region(state.axes(), i);
    visit_dtype(state.dtype(), [&]<class T>() {
      std::vector<T> part(product(region.extent));
      take_block(values.data(), all.extents(state.axes()), region, part.data());
      tile->second.write(part);
    });
  }
}

// A later update of the tile waits for the look at it: it goes first.
std::int64_t Store::visit(const Tensor& state,
                          const std::function<void(const TileRegion&, const void*)>& look) const {
  check("visit", state);
  const Layout all = layout();
  std::int64_t count = 0;
  for (auto at = tiles.lower_bound({state.id(), 0}); at != tiles.end() && at->first.first == state.id();
       ++at) {
    if (!at->second) continue;
    ++count;
    submit::visit(
        at->second,
        [look, region = all.region(state.axes(), at->first.second)](const void* data) { look(region, data); },
        {.priority = std::numeric_limits<int>::max()});
  }
  return count;
}

void Store::fill(const Tensor& state, const std::function<void(const TileRegion&, void*)>& filler) {
  check("fill", state);
  const Layout all = layout();
  for (auto at = tiles.lower_bound({state.id(), 0}); at != tiles.end() && at->first.first == state.id(); ++at)
    submit::fill(at->second, [filler, region = all.region(state.axes(), at->first.second)](void* data) {
      filler(region, data);
    });
}

}  // namespace tegula
