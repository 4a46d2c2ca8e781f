// Fusion: an op whose result has a single user may take that user into its own kernel (Semantics::absorb), and copies that
// change nothing are left out.
#include <algorithm>

#include "framework/graph/halo.hpp"
#include "framework/program/listing.hpp"

namespace tegula {

namespace {

// Whether a node is a halo whose tiles are those of x, one by one: of windows side by side, where x and y are cut alike.
bool copies_tiles(const Node& node, const Layout& layout) {
  const auto* halo = std::any_cast<Halo>(&node.attributes);
  if (halo == nullptr || halo->padding != 0) return false;
  const Axes &x = (halo->back ? node.outputs : node.inputs)[0].axes(),
             &windows = (halo->back ? node.inputs : node.outputs)[0].axes();
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (x[i] == windows[i]) continue;
    const auto [stride, kernel] = *windows[i].reach();
    if (layout.extent(x[i]) != layout.extent(windows[i]) ||
        layout.tile_size(x[i]) != layout.tile_size(windows[i]) ||
        (layout.tiles(x[i]) > 1 && stride != kernel))
      return false;
  }
  return true;
}

// Who would read such a copy reads x; who makes the windows of a gradient makes it itself. Both call axes by names of their own
// (Node::renamed), so that a tile is a tile to them.
void leave_out_copies(std::vector<Node>& nodes, const Layout& layout, const std::vector<Tensor>& keep) {
  std::vector<char> gone(nodes.size(), 0);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (!copies_tiles(nodes[i], layout)) continue;
    const bool back = std::any_cast<Halo>(&nodes[i].attributes)->back;
    const Tensor from = nodes[i].inputs[0], to = nodes[i].outputs[0], windows = back ? from : to;
    if (std::ranges::count(keep, windows) > 0) continue;
    std::vector<Node*> readers, makers;
    for (std::size_t k = 0; k < nodes.size(); ++k) {
      if (k == i || gone[k]) continue;
      if (std::ranges::count(nodes[k].inputs, windows) > 0) readers.push_back(&nodes[k]);
      if (std::ranges::count(nodes[k].outputs, windows) > 0) makers.push_back(&nodes[k]);
    }
    if (back && (makers.size() != 1 || !readers.empty())) continue;
    const std::vector<Node*>& changed = back ? makers : readers;
    if (std::ranges::any_of(changed, [](const Node* other) { return other->renamed.empty(); })) continue;
    for (Node* other : changed)
      std::ranges::replace(back ? other->outputs : other->inputs, windows, back ? to : from);
    gone[i] = 1;
  }
  std::size_t at = 0;
  std::erase_if(nodes, [&](const Node&) { return gone[at++]; });
}

}  // namespace

void fuse_epilogues(std::vector<Node>& nodes, const Layout& layout, const std::vector<Tensor>& keep) {
  leave_out_copies(nodes, layout, keep);
  struct Users {
    int count = 0;
    std::size_t last = 0;
  };
  std::map<int, Users> users;
  for (const Tensor& tensor : keep) users[tensor.id()].count = 2;  // the program needs it as it is
  for (std::size_t i = 0; i < nodes.size(); ++i)
    for (const Tensor& x : nodes[i].inputs)
      if (x) users[x.id()] = {users[x.id()].count + 1, i};

  std::vector<char> gone(nodes.size(), 0);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (gone[i] || !nodes[i].semantics->absorb) continue;
    Axes summed;
    const Axes& written = nodes[i].axes(nodes[i].inputs.size());
    for (std::size_t k = 0; k < nodes[i].inputs.size(); ++k)
      if (nodes[i].inputs[k])
        for (const Axis& axis : nodes[i].axes(k))
          if (std::ranges::find(written, axis) == written.end() &&
              std::ranges::find(summed, axis) == summed.end())
            summed.push_back(axis);
    if (layout.tiles(summed) > layout.group_size(summed)) continue;  // an epilogue needs the whole sum

    std::size_t at = i;  // where the fused node goes: after everything that it reads
    for (Users use = users[nodes[i].outputs[0].id()]; use.count == 1; use = users[nodes[i].outputs[0].id()]) {
      if (!nodes[i].semantics->absorb(nodes[i], nodes[use.last])) break;
      gone[at] = 1;
      at = use.last;
      gone[at] = 1;
    }
    if (at != i) {
      nodes[at] = std::move(nodes[i]);
      gone[at] = 0;
    }
  }
  std::size_t kept = 0;
  std::erase_if(nodes, [&](const Node&) { return gone[kept++]; });
}

}  // namespace tegula
