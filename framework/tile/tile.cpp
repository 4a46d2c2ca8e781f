#include "framework/tile/tile.hpp"

#include <fmt/format.h>
#include <starpu.h>

#include <cstring>
#include <stdexcept>

#include "framework/runtime/task_monitor.hpp"
#include "framework/tile/handle.hpp"

namespace tegula {
namespace {

std::string to_string(const std::vector<std::int64_t>& extents) {
  std::string list;
  for (std::int64_t extent : extents) list += (list.empty() ? "" : ", ") + std::to_string(extent);
  return "(" + list + ")";
}

}  // namespace

void Tile::set_extents(std::vector<std::int64_t> extents, DType dtype) {
  extents_ = std::move(extents);
  dtype_ = dtype;
  elements_ = 1;
  for (std::int64_t extent : extents_) {
    if (extent < 0)
      throw std::invalid_argument(fmt::format("[tile] an extent is negative: {}", to_string(extents_)));
    if (__builtin_mul_overflow(elements_, extent, &elements_))
      throw std::invalid_argument(fmt::format("[tile] too many elements: {}", to_string(extents_)));
  }
}

Tile::Tile(Runtime&, std::vector<std::int64_t> extents, DType dtype) {
  set_extents(std::move(extents), dtype);
  // Home node -1: StarPU allocates at the first write, frees when dropped, and may evict.
  if (bytes() > 0) starpu_variable_data_register(&handle_, -1, 0, static_cast<std::size_t>(bytes()));
}

Tile Tile::in(const Tile& memory, std::vector<std::int64_t> extents, DType dtype) {
  Tile tile;
  tile.set_extents(std::move(extents), dtype);
  if (tile.bytes() != memory.bytes())
    throw std::invalid_argument(
        fmt::format("[tile] a {} does not fit into the memory of a {}", to_string(tile), to_string(memory)));
  tile.handle_ = memory.handle_;
  tile.borrowed_ = true;
  return tile;
}

Tile::~Tile() {
  if (handle_ && !borrowed_ && starpu_is_initialized()) starpu_data_unregister_submit(handle_);
}

void Tile::check_host_type(DType dtype, std::int64_t elements) const {
  if (dtype != dtype_)
    throw std::invalid_argument(
        fmt::format("[tile] {} cannot be copied as {}", to_string(*this), name_of(dtype)));
  if (elements != elements_)
    throw std::invalid_argument(
        fmt::format("[tile] {} has {} elements, {} were given", to_string(*this), elements_, elements));
}

void Tile::copy_to(void* values) const {
  if (!handle_) return;
  if (!detail::has_value(handle_))
    throw std::logic_error(fmt::format("[tile] {} is read, but nothing has written it", to_string(*this)));
  starpu_data_acquire(handle_, STARPU_R);
  std::memcpy(values, starpu_data_get_local_ptr(handle_), bytes());
  starpu_data_release(handle_);
  detail::task_monitor().rethrow();
}

void Tile::copy_from(const void* values) {
  if (!handle_) return;
  starpu_data_acquire(handle_, STARPU_W);
  std::memcpy(starpu_data_get_local_ptr(handle_), values, bytes());
  starpu_data_release(handle_);
  detail::set_has_value(handle_, true);
}

std::string to_string(const Tile& tile) {
  return fmt::format("{} tile {}", name_of(tile.dtype()), to_string(tile.extents()));
}

}  // namespace tegula
