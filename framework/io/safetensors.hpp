// Reader and writer of safetensors, the exchange format of weights: 8 bytes of header size (little-endian), a
// JSON header naming dtype, shape and data offsets of each tensor, the data. Any safetensors tool can read
// what we write. https://github.com/huggingface/safetensors defines the format; the reader enforces all of
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/dtype.hpp"

namespace tegula::io {

struct TensorView {
  std::string name;
  DType dtype;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;  // row-major, little-endian; not owned
};

using Metadata = std::map<std::string, std::string>;

// Replaces `path` as a whole. Throws std::invalid_argument if the views do not fit each other (size, repeated
// name), std::runtime_error if writing fails.
void write_safetensors(const std::filesystem::path& path, std::span<const TensorView> tensors,
                       const Metadata& metadata = {});

// A parsed file. The views live as long as it does.
class Safetensors {
 public:
  // Throw std::runtime_error starting with the file's name: wrong sizes, unknown dtypes, overlaps and holes
  // between tensors, anything that is not what the header says.
  static Safetensors read(const std::filesystem::path& path);
  static Safetensors parse(std::vector<std::byte> file, std::string name);

  const std::vector<TensorView>& tensors() const { return tensors_; }  // in the order of their data
  const TensorView& at(std::string_view name) const;                   // throws std::runtime_error if missing
  const Metadata& metadata() const { return metadata_; }

 private:
  std::vector<std::byte> file_;
  std::string name_;
  std::vector<TensorView> tensors_;
  Metadata metadata_;
};

}  // namespace tegula::io
