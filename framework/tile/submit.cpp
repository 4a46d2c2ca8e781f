#include "framework/tile/submit.hpp"

#include <fmt/format.h>
#include <starpu.h>
#include <starpu_mpi.h>

#include <limits>
#include <memory>
#include <stdexcept>

#include "framework/runtime/heartbeat.hpp"
#include "framework/runtime/job.hpp"
#include "framework/runtime/simulated.hpp"
#include "framework/runtime/task_monitor.hpp"
#include "framework/tile/handle.hpp"

namespace tegula::submit {
namespace {

// Host code as a task: the argument is a HostCode that the task owns.
struct HostCode {
  std::function<void(void*)> function;
  std::int64_t bytes;
  bool writes;
};

// Simulated, it takes the time of a pass over the tile, and what it would write is not made up.
void simulate(const HostCode& code, void* data) {
  const simulation::Device& core = detail::simulated_place().type().core;
  starpu_sleep(static_cast<float>(core.overhead + static_cast<double>(code.bytes) / core.bandwidth));
  if (!code.writes) code.function(data);
}

void run_host_code(void** buffers, void* argument) {
  const std::unique_ptr<HostCode> code(static_cast<HostCode*>(argument));
  if (detail::task_monitor().failed()) return;
  try {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): StarPU keeps addresses as integers
    auto* data = reinterpret_cast<void*>(STARPU_VARIABLE_GET_PTR(buffers[0]));
    if (detail::simulated)
      simulate(*code, data);
    else
      code->function(data);
  } catch (...) {
    detail::task_monitor().record_error(std::current_exception());
  }
}

void submit_host_code(const Tile& tile, starpu_data_access_mode mode, std::function<void(void*)> function,
                      const TaskOptions& options) {
  static starpu_codelet codelet = [] {
    starpu_codelet c;
    starpu_codelet_init(&c);
    c.cpu_funcs[0] = run_host_code;
    c.nbuffers = STARPU_VARIABLE_NBUFFERS;
    c.name = "host";
    if (detail::simulated) c.flags = STARPU_CODELET_SIMGRID_EXECUTE;
    return c;
  }();
  auto code = std::make_unique<HostCode>(std::move(function), tile.bytes(), mode == STARPU_W);
  starpu_task* task = starpu_task_create();
  task->cl = &codelet;
  task->cl_arg = code.get();
  task->name = options.label ? options.label : "host";
  task->priority = options.priority;
  task->nbuffers = 1;
  task->handles[0] = tile.handle();
  task->modes[0] = mode;
  if (starpu_task_submit(task) != 0) {
    task->destroy = 0;
    starpu_task_destroy(task);
    throw std::runtime_error(
        fmt::format("[{}] host code needs a CPU worker, and this rank has none", task->name));
  }
  static_cast<void>(code.release());
}

void check_read(const char* what, const Tile& tile) {
  if (!detail::has_value(tile.handle()))
    throw std::logic_error(fmt::format("[{}] {} is read, but nothing has written it", what, to_string(tile)));
}

void check_message(const char* what, const Tile& tile, int peer) {
  const detail::Job& job = detail::Job::current();
  if (peer < 0 || peer >= job.size || peer == job.rank)
    throw std::invalid_argument(fmt::format("[{}] rank {} of {} cannot exchange a tile with rank {}", what,
                                            job.rank, job.size, peer));
  if (tile.bytes() > std::numeric_limits<int>::max())
    throw std::invalid_argument(
        fmt::format("[{}] a {} is too large for one message: cut it below 2 GiB", what, to_string(tile)));
}

void end_waiting(void* id) { detail::end_waiting(reinterpret_cast<std::uintptr_t>(id)); }

void check_matrix(const char* name, const Tile& tile) {
  if (tile.extents().size() != 2)
    throw std::invalid_argument(fmt::format("[gemm] {} is a {}: a matrix is needed", name, to_string(tile)));
}

std::int32_t narrow(std::int64_t extent) {
  if (extent > std::numeric_limits<std::int32_t>::max())
    throw std::invalid_argument(fmt::format("[gemm] an extent of {} is too large for a tile", extent));
  return static_cast<std::int32_t>(extent);
}

}  // namespace

DType run_type(const OpInfo& op, std::span<const Tile* const> tiles) {
  std::size_t next = 0;
  for (const OperandInfo& operand : op.operands) {
    if (operand.access == Access::scratch) continue;
    const Tile* tile = next < tiles.size() ? tiles[next++] : nullptr;
    if (tile && *tile && !operand.fixed) return tile->dtype();
  }
  return op.dtypes.front();
}

void task(const OpInfo& op, DType dtype, const void* attributes, std::span<const Tile* const> tiles,
          const TaskOptions& options) {
  PreparedTask(op, dtype, attributes, tiles, options).submit(options.sequence);
}

void fill(const Tile& tile, std::function<void(void*)> write, const TaskOptions& options) {
  if (!tile) return;
  submit_host_code(tile, STARPU_W, std::move(write), options);
  detail::set_has_value(tile.handle(), true);
}

void visit(const Tile& tile, std::function<void(const void*)> read, const TaskOptions& options) {
  if (!tile) return;
  check_read("visit", tile);
  submit_host_code(tile, STARPU_R, std::move(read), options);
}

void send(Runtime&, const Tile& tile, int destination, std::int64_t tag, int priority) {
  check_message("send", tile, destination);
  if (!tile) return;
  check_read("send", tile);
  const std::uint64_t waiting = detail::begin_waiting(destination, nullptr);
  starpu_mpi_isend_detached_prio(tile.handle(), destination, tag, priority, detail::Job::current().tasks,
                                 end_waiting, reinterpret_cast<void*>(static_cast<std::uintptr_t>(waiting)));
}

void receive(Runtime&, const Tile& tile, int source, std::int64_t tag, const char* what) {
  check_message("receive", tile, source);
  if (!tile) return;
  const std::uint64_t waiting = detail::begin_waiting(source, what);
  starpu_mpi_irecv_detached(tile.handle(), source, tag, detail::Job::current().tasks, end_waiting,
                            reinterpret_cast<void*>(static_cast<std::uintptr_t>(waiting)));
  detail::set_has_value(tile.handle(), true);
}

void drop(const Tile& tile) {
  if (!tile || !detail::has_value(tile.handle())) return;
  starpu_data_invalidate_submit(tile.handle());
  detail::set_has_value(tile.handle(), false);
}

void gemm(const Tile& a, const Tile& b, const Tile& c, const GemmOptions& options,
          const TaskOptions& task_options) {
  check_matrix("a", a);
  check_matrix("b", b);
  check_matrix("c", c);
  const bool ta = options.transpose_a, tb = options.transpose_b;
  const std::int64_t m = a.extents()[ta ? 1 : 0], k = a.extents()[ta ? 0 : 1];
  const std::int64_t k_b = b.extents()[tb ? 1 : 0], n = b.extents()[tb ? 0 : 1];
  const char* stored_a = ta ? ", transposed" : "";
  const char* stored_b = tb ? ", transposed" : "";
  if (k != k_b)
    throw std::invalid_argument(fmt::format("[gemm] inner extents differ: a is a {}{}, b is a {}{}",
                                            to_string(a), stored_a, to_string(b), stored_b));
  if (c.extents()[0] != m || c.extents()[1] != n)
    throw std::invalid_argument(fmt::format("[gemm] c is a {}, the product of a {}{} and a {}{} is ({}, {})",
                                            to_string(c), to_string(a), stored_a, to_string(b), stored_b, m,
                                            n));
  if (options.bias && options.bias->elements() != n)
    throw std::invalid_argument(
        fmt::format("[gemm] bias is a {}, the product has {} columns", to_string(*options.bias), n));
  const Gemm op{.batch = 1,
                .m = narrow(m),
                .n = narrow(n),
                .k = narrow(k),
                .trans_a = ta,
                .trans_b = tb,
                .alpha = options.alpha,
                .beta = options.accumulate ? 1.0F : 0.0F,
                .has_bias = options.bias != nullptr,
                .activation = options.activation,
                .has_slope = false};
  const Tile* tiles[] = {&a, &b, options.bias, nullptr, &c};
  task(op_info<Gemm>(), c.dtype(), &op, tiles, task_options);
}

std::vector<std::int64_t> broadcast_strides(const std::string& op, const Tile& x, const Tile& y) {
  const std::size_t rank = y.extents().size(), missing = rank - std::min(rank, x.extents().size());
  bool fits = x.extents().size() <= rank;
  std::vector<std::int64_t> strides(rank, 0);
  std::int64_t stride = 1;
  for (std::size_t d = rank; fits && d-- > missing;) {
    const std::int64_t extent = x.extents()[d - missing];
    fits = extent == y.extents()[d] || extent == 1;
    if (extent != 1) strides[d] = stride;
    stride *= extent;
  }
  if (!fits)
    throw std::invalid_argument(
        fmt::format("[{}] a {} does not repeat to a {}", op, to_string(x), to_string(y)));
  return strides;
}

}  // namespace tegula::submit
