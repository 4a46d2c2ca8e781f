// Reader and writer of safetensors, the exchange format of weights: 8 bytes of header size (little-endian), a
// JSON header naming dtype, shape and data offsets of each tensor, the data. Any safetensors tool can read
// what we write. https://github.com/huggingface/safetensors defines the format; the reader enforces all of
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
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

// The start of a file that will hold these tensors, whose bytes need not be there yet: a function of names, dtypes and
// shapes alone, so that processes which have a part of the data each agree on where it goes. Throws
// std::invalid_argument for a repeated name.
struct SafetensorsHeader {
  std::string text;                    // with the 8 bytes of its size
  std::vector<std::uint64_t> offsets;  // of each tensor's data, from the start of the file
  std::uint64_t file_bytes;
};
SafetensorsHeader safetensors_header(std::span<const TensorView> tensors, const Metadata& metadata = {});

// A parsed file. The views live as long as it or a copy does.
class Safetensors {
 public:
  // Throw std::runtime_error starting with the file's name: wrong sizes, unknown dtypes, overlaps and holes
  // between tensors, anything that is not what the header says.
  static Safetensors read(const std::filesystem::path& path);
  static Safetensors map(const std::filesystem::path& path);  // see MappedFile
  static Safetensors parse(std::vector<std::byte> file, std::string name);

  const std::vector<TensorView>& tensors() const { return tensors_; }  // in the order of their data
  const TensorView& at(std::string_view name) const;                   // throws std::runtime_error if missing
  // Name and dtype of those whose dtype tiles have not, F16 say: they are checked as all are, but cannot be read.
  const std::map<std::string, std::string, std::less<>>& foreign() const { return foreign_; }
  const Metadata& metadata() const { return metadata_; }

  const std::string& name() const { return name_; }  // of the file

 private:
  Safetensors(std::shared_ptr<const void> owner, std::span<const std::byte> bytes, std::string name);

  std::shared_ptr<const void> owner_;  // of what the views show
  std::string name_;
  std::vector<TensorView> tensors_;
  std::map<std::string, std::string, std::less<>> foreign_;
  Metadata metadata_;
};

}  // namespace tegula::io
