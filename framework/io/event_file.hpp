// Curves for TensorBoard, written without it. An event file is a sequence of TFRecords,
//   length u64, masked CRC-32C of the length, bytes, masked CRC-32C of the bytes      (little-endian)
// whose bytes are protocol buffers of the type Event: tensorflow/core/util/event.proto and framework/summary.proto.
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <span>
#include <string_view>

#include "framework/io/file.hpp"

namespace tegula::io {

struct Scalar {
  std::string_view tag;  // UTF-8; what comes before a '/' groups curves
  double value;          // TensorBoard has floats
};

class EventFile : OutputFile {
 public:
  // Begins a new file in `folder`, which must exist: events.out.tfevents.<unix time>.<host>.<pid>, with a number behind
  // if there is one already. Throws std::runtime_error if it cannot be written.
  explicit EventFile(const std::filesystem::path& folder);

  // Appends one event by one write, so that TensorBoard never reads half of one that is done.
  void add(std::int64_t step, std::span<const Scalar> scalars);
  void add(std::int64_t step, std::initializer_list<Scalar> scalars) {
    add(step, std::span(scalars.begin(), scalars.size()));
  }

  const std::filesystem::path& path() const { return path_; }
};

}  // namespace tegula::io
