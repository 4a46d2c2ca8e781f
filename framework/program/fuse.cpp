// Fusion: an op whose result has a single user may take that user into its own kernel (Semantics::absorb).
#include <algorithm>

#include "framework/program/listing.hpp"

namespace tegula {

void fuse_epilogues(std::vector<Node>& nodes, const Layout& layout, const std::vector<Tensor>& keep) {
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
