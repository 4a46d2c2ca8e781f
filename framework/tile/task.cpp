#include "framework/tile/task.hpp"

#include <fmt/format.h>
#include <starpu.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>

#include "framework/tile/codelet.hpp"
#include "framework/tile/handle.hpp"

namespace tegula::submit {
namespace {

using detail::TaskArguments;

starpu_data_access_mode starpu_mode(Access access) {
  switch (access) {
    case Access::read:
      return STARPU_R;
    case Access::write:
      return STARPU_W;
    case Access::read_write:
      return STARPU_RW;
    case Access::scratch:
      return STARPU_SCRATCH;
    case Access::accumulate:
    case Access::optional:
      break;  // OpInfo::access() has resolved these
  }
  throw std::logic_error("OpInfo::access() returned a mode that depends on the attributes");
}

bool writes(Access access) { return access == Access::write || access == Access::read_write; }

void check_operand(const OpInfo& op, int operand, const Tile& tile, DType dtype, std::int64_t elements) {
  if (tile.dtype() != dtype)
    throw std::invalid_argument(fmt::format("[{}] operand {} is a {}, the op needs {}", op.name, operand,
                                            to_string(tile), name_of(dtype)));
  if (tile.elements() != elements)
    throw std::invalid_argument(fmt::format("[{}] operand {} is a {} of {} elements, the op needs {}",
                                            op.name, operand, to_string(tile), tile.elements(), elements));
}

std::uint32_t hash_mix(std::uint32_t hash, std::uint64_t value) {
  value = (value + hash) * 0x9e3779b97f4a7c15ULL;
  return static_cast<std::uint32_t>(value >> 32);
}

}  // namespace

Turn::Turn() {
  starpu_void_data_register(&handle_);
  detail::set_has_value(handle_, true);
}
Turn::~Turn() {
  if (starpu_is_initialized()) starpu_data_unregister_submit(handle_);
}
// A task that nobody runs.
void Turn::next() {
  static starpu_codelet codelet = [] {
    starpu_codelet c;
    starpu_codelet_init(&c);
    c.where = STARPU_NOWHERE;
    c.nbuffers = 1;
    c.modes[0] = STARPU_W;
    c.name = "turn";
    return c;
  }();
  starpu_task* task = starpu_task_create();
  task->cl = &codelet;
  task->handles[0] = handle_;
  if (starpu_task_submit(task) != 0) throw std::logic_error("[turn] StarPU takes no task");
}

PreparedTask::PreparedTask(const OpInfo& op, DType dtype, const void* attributes,
                           std::span<const Tile* const> tiles, const TaskOptions& options)
    : arguments_(sizeof(TaskArguments) + op.attributes_bytes),
      flops_(op.flops(attributes)),
      priority_(options.priority) {
  if (std::ranges::find(op.dtypes, dtype) == op.dtypes.end())
    throw std::invalid_argument(fmt::format("[{}] has no kernel for {}", op.name, name_of(dtype)));
  const int operands = static_cast<int>(op.operands.size());
  if (operands > detail::max_operands)
    throw std::invalid_argument(
        fmt::format("[{}] has {} operands, a task takes {}", op.name, operands, detail::max_operands));
  auto& task = *std::construct_at(reinterpret_cast<TaskArguments*>(arguments_.data()));
  task = {.op = &op,
          .label = options.label ? options.label : op.name.c_str(),
          .sequence = options.sequence,
          .present = 0,
          .footprint = 0,
          .dtype = dtype};
  std::memcpy(task.attributes(), attributes, op.attributes_bytes);
  task.footprint = hash_mix(static_cast<std::uint32_t>(std::hash<std::string>{}(op.name)),
                            static_cast<std::uint64_t>(flops_));

  bool has_output = false;
  std::size_t next = 0;
  for (int i = 0; i < operands; ++i) {
    const bool scratch = op.operands[i].access == Access::scratch;
    const bool used = op.has(attributes, i);
    const std::int64_t elements = used ? op.extent(attributes, i, dtype) : 0;
    const DType type = op.dtype(i, dtype);
    task.footprint = hash_mix(task.footprint, elements * size_of(type));
    if (scratch) {
      if (elements == 0) continue;
      buffers_.push_back({detail::scratch_handle(elements * size_of(type)), STARPU_SCRATCH});
      task.present |= 1U << i;
      continue;
    }
    const Tile* tile = next < tiles.size() ? tiles[next] : nullptr;
    ++next;
    if (!tile || (!*tile && elements != 0)) {
      if (elements != 0) throw std::invalid_argument(fmt::format("[{}] operand {} is missing", op.name, i));
      continue;
    }
    if (!used) {
      if (!*tile) continue;
      throw std::invalid_argument(fmt::format("[{}] operand {} is a {}, but these attributes use none",
                                              op.name, i, to_string(*tile)));
    }
    check_operand(op, i, *tile, type, elements);
    if (elements == 0) continue;
    const Access access = op.access(attributes, i);
    for (const Buffer& other : buffers_)
      if (other.handle == tile->handle() && (writes(access) || other.mode & STARPU_W))
        throw std::invalid_argument(fmt::format("[{}] operand {}, a {}, is given a second time and written",
                                                op.name, i, to_string(*tile)));
    has_output |= writes(access);
    buffers_.push_back({tile->handle(), starpu_mode(access)});
    task.present |= 1U << i;
  }
  if (next < tiles.size())
    throw std::invalid_argument(
        fmt::format("[{}] takes {} tiles, {} are given", op.name, next, tiles.size()));
  if (!has_output) return;
  codelet_ = &detail::codelet(op, dtype);
  if (options.turn) buffers_.push_back({options.turn->handle_, STARPU_R});  // behind what the kernel is given
}

void PreparedTask::submit(std::uint64_t sequence, std::span<const ScalarValue> scalars) const {
  if (!codelet_) return;
  const auto& prepared = *reinterpret_cast<const TaskArguments*>(arguments_.data());
  for (std::size_t i = 0; i < buffers_.size(); ++i)
    if (buffers_[i].mode & STARPU_R && !detail::has_value(buffers_[i].handle))
      throw std::logic_error(fmt::format("[{}] task '{}' reads a tile (buffer {}) that nothing has written",
                                         prepared.op->name, prepared.label, i));

  // Freed by StarPU, which uses free(). A copy for each submission: the scalars differ, and this object may go.
  auto* task_arguments = static_cast<std::byte*>(std::malloc(arguments_.size()));
  if (!task_arguments) throw std::bad_alloc();
  std::memcpy(task_arguments, arguments_.data(), arguments_.size());
  auto& arguments = *reinterpret_cast<TaskArguments*>(task_arguments);
  arguments.sequence = sequence;
  for (const ScalarValue& scalar : scalars)
    std::memcpy(static_cast<std::byte*>(arguments.attributes()) + scalar.offset, &scalar.value,
                sizeof scalar.value);

  starpu_task* task = starpu_task_create();
  task->cl = codelet_;
  task->cl_arg = task_arguments;
  task->cl_arg_size = arguments_.size();
  task->cl_arg_free = 1;
  task->name = prepared.label;
  task->priority = priority_;
  task->flops = flops_;
  task->nbuffers = static_cast<int>(buffers_.size());
  if (buffers_.size() > STARPU_NMAXBUFS) {  // StarPU frees these with the task
    // NOLINTNEXTLINE(bugprone-sizeof-expression): handles are pointers
    task->dyn_handles =
        static_cast<starpu_data_handle_t*>(std::malloc(buffers_.size() * sizeof(starpu_data_handle_t)));
    task->dyn_modes =
        static_cast<starpu_data_access_mode*>(std::malloc(buffers_.size() * sizeof *task->dyn_modes));
    if (!task->dyn_handles || !task->dyn_modes) throw std::bad_alloc();
  }
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    STARPU_TASK_SET_HANDLE(task, buffers_[i].handle, i);
    STARPU_TASK_SET_MODE(task, static_cast<starpu_data_access_mode>(buffers_[i].mode), i);
    if (buffers_[i].mode & STARPU_W) detail::set_has_value(buffers_[i].handle, true);
  }
  if ((starpu_task_submit)(task) !=
      0) {  // not the macro, which would have the trace repeat this line's number
    task->destroy = 0;
    starpu_task_destroy(task);
    throw std::runtime_error(fmt::format("[{}] no worker of this rank can run {} for {}: it has a CPU body{}",
                                         prepared.op->name, prepared.label, name_of(prepared.dtype),
                                         prepared.op->cuda ? " and a CUDA body" : " only"));
  }
}

}  // namespace tegula::submit
