// Looks for NaN and infinities in a tile.
#pragma once

#include <cstdint>

#include "kernels/dtype.hpp"

namespace tegula {

// Whether none of the n elements at `data` is NaN or infinite; integers never are.
bool all_finite(const void* data, std::int64_t n, DType dtype);

}  // namespace tegula
