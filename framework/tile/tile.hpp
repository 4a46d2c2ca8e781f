// Tile: a dense block of one tensor, known to StarPU by one handle.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "framework/runtime/runtime.hpp"
#include "kernels/dtype.hpp"

struct _starpu_data_state;

namespace tegula {

// Memory comes from StarPU at the first write and goes at drop() or after the tasks that use the tile when the
// object goes; nothing waits for that. A tile must not outlive the Runtime it was made for.
class Tile {
 public:
  Tile() = default;  // no tile: stands for an absent optional operand
  Tile(Runtime& runtime, std::vector<std::int64_t> extents, DType dtype);
  // A tile that lies where `memory` does, of as many bytes (std::invalid_argument otherwise), and must not outlive it: what is
  // written to one overwrites the other.
  static Tile in(const Tile& memory, std::vector<std::int64_t> extents, DType dtype);
  Tile(Tile&& other) noexcept { swap(other); }
  Tile& operator=(Tile&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Tile();

  // False without a tile, and for a tile of no elements.
  explicit operator bool() const { return handle_ != nullptr; }
  const std::vector<std::int64_t>& extents() const { return extents_; }
  std::int64_t elements() const { return elements_; }  // product of the extents
  std::int64_t bytes() const { return elements_ * static_cast<std::int64_t>(size_of(dtype_)); }
  DType dtype() const { return dtype_; }
  _starpu_data_state* handle() const { return handle_; }  // a starpu_data_handle_t

  // Row-major copies of the whole tile from and to host memory; they wait for the tasks that use it. T must be the
  // tile's element type (std::invalid_argument otherwise). read() rethrows an error of a kernel, as wait() does.
  template <class T>
  std::vector<T> read() const {
    check_host_type(dtype_of<T>, elements_);
    std::vector<T> values(elements_);
    copy_to(values.data());
    return values;
  }
  template <class T>
  void write(std::span<const T> values) {
    check_host_type(dtype_of<T>, static_cast<std::int64_t>(values.size()));
    copy_from(values.data());
  }
  template <class T>
  void write(const std::vector<T>& values) {
    write(std::span<const T>(values));
  }

 private:
  void swap(Tile& other) noexcept {
    std::swap(extents_, other.extents_);
    std::swap(elements_, other.elements_);
    std::swap(dtype_, other.dtype_);
    std::swap(handle_, other.handle_);
    std::swap(borrowed_, other.borrowed_);
  }
  void set_extents(std::vector<std::int64_t> extents, DType dtype);
  void check_host_type(DType dtype, std::int64_t elements) const;
  void copy_to(void* values) const;
  void copy_from(const void* values);

  std::vector<std::int64_t> extents_;
  std::int64_t elements_ = 0;
  DType dtype_ = DType::f32;
  _starpu_data_state* handle_ = nullptr;
  bool borrowed_ = false;  // another tile's
};

// "f32 tile (64, 32)", for messages.
std::string to_string(const Tile& tile);

}  // namespace tegula
