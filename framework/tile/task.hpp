// PreparedTask: a task checked and described once, submitted any number of times. Compiled programs keep a list of
// these; submit::task prepares one and submits it at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "framework/tile/tile.hpp"
#include "kernels/op.hpp"

struct starpu_codelet;

namespace tegula::submit {

// Keeps tasks apart in time that share no tile: those submitted with it wait until those before the last next() are done.
class Turn {
 public:
  Turn();
  ~Turn();
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  void next();

 private:
  friend class PreparedTask;
  _starpu_data_state* handle_ = nullptr;
};

struct TaskOptions {
  int priority = 0;             // larger runs earlier, where the scheduler looks at priorities
  const char* label = nullptr;  // name in traces and messages (kept, not copied); null: the op's name
  const Turn* turn = nullptr;
  std::uint64_t sequence = 0;  // place in the program's order, for Runtime::first_non_finite
};

// The value of a run-time scalar in one submission, for the attribute at `offset` (see Scalar in op.hpp).
struct ScalarValue {
  std::size_t offset;
  double value;
};

class PreparedTask {
 public:
  // `tiles` are in the order of the op's operands without the scratch ones; a null pointer or an empty tile stands
  // for an absent optional operand, and trailing ones may be left out. `attributes` are copied, tiles must stay.
  // Throws std::invalid_argument, naming op, operand, what was given and what was expected.
  PreparedTask(const OpInfo& op, DType dtype, const void* attributes, std::span<const Tile* const> tiles,
               const TaskOptions& options = {});

  // Returns at once. A task whose outputs are all empty is skipped. Throws std::logic_error if a tile is read that
  // nothing has written, std::runtime_error if no worker can run the op.
  void submit(std::uint64_t sequence, std::span<const ScalarValue> scalars = {}) const;

  double flops() const { return flops_; }
  int priority() const { return priority_; }
  void set_priority(int priority) { priority_ = priority; }

 private:
  struct Buffer {
    _starpu_data_state* handle;
    int mode;  // a starpu_data_access_mode
  };
  starpu_codelet* codelet_ = nullptr;  // null: nothing to do
  std::vector<Buffer> buffers_;
  std::vector<std::byte> arguments_;  // what the kernel is given: detail::TaskArguments, then the attributes
  double flops_ = 0;
  int priority_;
};

}  // namespace tegula::submit
