// Windows of images: how ops that slide a window along axes are done on tiles of those. A tile of the output needs more of the
// input than the tile beside it holds, so that its part is put together first: from tiles, their neighbours, and padding.
#pragma once

#include "framework/graph/graph.hpp"
#include "kernels/copy_box.hpp"

namespace tegula {

// Axes of what halo() makes of x for an op with output y: those of x, but of windows over the axes of y from the third on.
// kernel[i] is the extent of the window along axis i + 2 of both.
Axes window_axes(const Axes& x, const Axes& y, int stride, const std::vector<std::int64_t>& kernel);

// The same axes as the op's node calls them (Node::renamed), so that it meets each tile of y with the tile beside it.
Axes beside(const Axes& x, const Axes& y);

// x, in which each axis that `axes` has not is replaced by one of windows (Graph::window) in the same place, and taken as padded on
// both sides with `value`. Tile t of such an axis has what the windows of the outputs in its tile t reach over; windows of
// neighbours may overlap, so tiles do, too. Up to five axes.
Tensor halo(const Tensor& x, const Axes& axes, int padding, double value = 0);

// The transpose: an x, of axes `axes`, whose elements are the sums of all that halo() makes of them; 0 where that is nothing.
Tensor halo_grad(const Tensor& windows, const Axes& axes, int padding);

// The attributes of both.
struct Halo {
  int padding;
  double value;  // of the padding
  bool back;     // from windows to x
};

// What one task of either copies: `extent` elements at src_begin of a tile of the input, to dst_begin of one of the output.
struct Box {
  CopyBox::Index src_begin{}, dst_begin{}, extent{};
  bool empty() const { return CopyBox::size(extent) == 0; }
};
Box box(const Node& node, const TileRange& range);

}  // namespace tegula
