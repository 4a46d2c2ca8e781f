// Running a CUDA body outside StarPU: for the tests, which compare CUDA with CPU.
#pragma once

#include <vector>

#include "kernels/op.hpp"

namespace tegula {

struct Device {
  // Copies the tiles to the device, runs op.cuda, waits, and copies them back. Throws std::runtime_error on a
  // CUDA error.
  void (*run)(const OpInfo& op, const void* attributes, const std::vector<void*>& tiles, DType dtype);
};

namespace detail {
inline const Device* (*probe_device)() = nullptr;  // set by device.cu
}

// Null in a build without CUDA, or where there is no device.
inline const Device* find_device() { return detail::probe_device ? detail::probe_device() : nullptr; }

}  // namespace tegula
