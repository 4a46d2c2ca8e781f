// Which element of which file each element of a state is, and what ranks have to agree on to use that. For the writer
// and the loader of checkpoints.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "framework/io/checkpoint.hpp"
#include "framework/program/block.hpp"

namespace tegula::io {

// Columns of a file's tensor that a state is.
struct CheckpointPart {
  Tensor state;
  std::vector<std::int64_t> extents;  // of the state
  std::int64_t begin, columns;
};

struct CheckpointFileTensor {
  std::string name;
  DType dtype;
  std::vector<std::int64_t> shape;
  std::int64_t columns;               // of the whole, seen as a matrix
  std::vector<CheckpointPart> parts;  // from left to right

  std::int64_t elements() const { return product(shape); }
};

using CheckpointFiles = std::map<std::string, std::vector<CheckpointFileTensor>>;

// Throws std::invalid_argument for names that are taken, shapes that do not fit, parts that leave holes or overlap.
CheckpointFiles checkpoint_files(std::span<const CheckpointTensor> tensors);

// Calls visit(offset in the tile, index in the file's tensor, length) for each run of elements contiguous in both.
template <class F>
void for_each_file_run(const TileRegion& region, const CheckpointPart& part, std::int64_t file_columns,
                       F&& visit) {
  std::int64_t tile_begin = 0, file_begin = 0, length = 0;
  for_each_run(region, part.extents, [&](std::int64_t in_tile, std::int64_t in_state, std::int64_t rest) {
    while (rest > 0) {
      const std::int64_t column = in_state % part.columns;
      const std::int64_t index = in_state / part.columns * file_columns + part.begin + column;
      const std::int64_t count = part.columns == file_columns ? rest : std::min(rest, part.columns - column);
      if (length > 0 && in_tile == tile_begin + length && index == file_begin + length) {
        length += count;
      } else {
        if (length > 0) visit(tile_begin, file_begin, length);
        tile_begin = in_tile, file_begin = index, length = count;
      }
      in_tile += count, in_state += count, rest -= count;
    }
  });
  if (length > 0) visit(tile_begin, file_begin, length);
}

std::string shape_text(const std::vector<std::int64_t>& shape);  // "(2, 3)", for messages

// Runs `local` on every rank; where it throws on any, throws that message on all, so that a program can go on with another
// checkpoint. Collective.
void alike(Runtime& runtime, const std::function<void()>& local);

// Sums modulo 2^64 over all ranks. Collective.
void sum_over_ranks(Runtime& runtime, std::span<std::uint64_t> values);

}  // namespace tegula::io
