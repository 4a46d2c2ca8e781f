// Reader of IDX files, the format of MNIST and its descendants: two zero bytes, an element type (0x08:
// unsigned byte), the number of dimensions, the extents as big-endian 32-bit integers, the elements in
// row-major order. Files may be gzipped. http://yann.lecun.com/exdb/mnist defines the format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace tegula::io {

struct IdxArray {
  std::vector<std::int64_t> extents;
  std::vector<std::uint8_t> values;  // row-major, as many as the product of the extents
};

// Reads `file`, plain or gzipped (told apart by content, not by name), which must hold unsigned bytes of
// exactly `dimensions` dimensions. Allocates only what `file` can really hold: a false header or a gzip bomb
// is found first. Throws std::runtime_error starting with `name`.
IdxArray parse_idx(std::span<const std::byte> file, const std::string& name, std::size_t dimensions);

IdxArray read_idx(const std::filesystem::path& path, std::size_t dimensions);

}  // namespace tegula::io
