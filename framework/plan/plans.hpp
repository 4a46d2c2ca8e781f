// The usual plans, in a few lines each over Plan's own entries: start from one and add what else is wanted.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "framework/plan/plan.hpp"

namespace tegula::plans {

// Every rank has a part of the batch, in tiles of `size` (0: one tile), and sums gradients over it before ranks add theirs.
// Parameters, gradients and moments have one owner, tile by tile, so this is also what is known as ZeRO's third stage or fully
// sharded; cut large parameters into tiles to spread them evenly.
Plan data_parallel(const Axis& batch, int ranks, std::int64_t size = 0);

// Every rank has a part of each of `axes`: hidden layers, heads, the vocabulary. A product onto such an axis and one back from it
// need no message in between.
Plan tensor_parallel(const Axes& axes, int ranks);

// The layers in consecutive stages of about the same work, one on each rank; interleaved: `parts` on each. The batch in
// micro-batches of `size`.
Plan pipeline(Graph& graph, const Axis& batch, std::int64_t size, int ranks,
              Schedule schedule = schedules::one_forward_one_backward(), int parts = 1);

// The batch, inner axes and outer axes each along one dimension, "x", "y" and "z", of a cube of ranks: products of (batch, outer)
// by (inner, outer) and of (batch, inner) by (outer, inner) in three dimensions.
Plan mesh_3d(const Axis& batch, const Axes& inner, const Axes& outer, int side);

// Images in parts: `axis`, the height of the input, say, in tiles of `tile`, and every axis that convolution and pooling make along
// it in as many (or fewer, where it is too short), consecutive ones on one of the ranks, along the mesh dimension "space". Halos go
// between ranks, weights have one owner. Throws std::invalid_argument for a tile below 1.
Plan spatial(Graph& graph, const Axis& axis, std::int64_t tile, int ranks);

// Cuts the axes that are made along `axis`, such as the rows of a convolution's output along those of its input, into as many
// tiles as the plan cuts `axis` in, sharded as that is.
void follow(Plan& plan, Graph& graph, const Axis& axis);

// Layers, which are the outermost scopes of a graph in the order of their first node, and their stages: consecutive, none
// empty where there are enough layers, of about the same number of flops.
std::vector<std::pair<std::string, int>> even_stages(Graph& graph, int stages);

}  // namespace tegula::plans
