// From the statement of an op to what StarPU needs to run it: one codelet per op and element type.
#pragma once

#include <starpu.h>

#include <cstdint>

#include "kernels/op.hpp"

namespace tegula::detail {

inline constexpr int max_operands = 32;  // of one task: TaskArguments::present has a bit for each

// What a task carries to its kernel, in one block: this, then the attributes of the op.
struct alignas(16) TaskArguments {
  const OpInfo* op;
  const char* label;
  std::uint64_t sequence;
  std::uint32_t present;    // bit i: operand i has a buffer
  std::uint32_t footprint;  // key of the performance model: tasks of equal cost share it
  DType dtype;

  void* attributes() { return this + 1; }
};

// Made at the first call, for the life of the process.
starpu_codelet& codelet(const OpInfo& op, DType dtype);

// Scratch memory of this size: one handle for all tasks, behind which each worker has memory of its own. Released when
// StarPU shuts down.
starpu_data_handle_t scratch_handle(std::size_t bytes);

}  // namespace tegula::detail
