#include "framework/tile/codelet.hpp"

#include <bit>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "framework/runtime/shutdown.hpp"
#include "framework/runtime/simulated.hpp"
#include "framework/runtime/task_monitor.hpp"
#include "kernels/finite.hpp"

namespace tegula::detail {
namespace {

// The pointers the kernel wants, in the order of its operands: StarPU's buffers, null where an operand is absent.
struct TilePointers {
  TilePointers(const TaskArguments& task, void** buffers) {
    int buffer = 0;
    for (std::size_t i = 0; i < task.op->operands.size(); ++i)
      // NOLINTNEXTLINE(performance-no-int-to-ptr): StarPU keeps addresses as integers
      pointers[i] = task.present >> i & 1
                        ? reinterpret_cast<void*>(STARPU_VARIABLE_GET_PTR(buffers[buffer++]))
                        : nullptr;
  }
  void* pointers[max_operands];
};

void check_finite(TaskArguments& task, void* const* tiles) {
  for (int i = 0; i < static_cast<int>(task.op->operands.size()); ++i) {
    const Access access = task.op->access(task.attributes(), i);
    if (!tiles[i] || (access != Access::write && access != Access::read_write)) continue;
    const DType dtype = task.op->dtype(i, task.dtype);
    if (all_finite(tiles[i], task.op->extent(task.attributes(), i, task.dtype), dtype)) continue;
    task_monitor().record_non_finite({task.sequence, task.label});
    return;
  }
}

void run_on_cpu(void** buffers, void* argument) {
  if (task_monitor().failed()) return;
  auto& task = *static_cast<TaskArguments*>(argument);
  const TilePointers tiles(task, buffers);
  try {
    task.op->cpu(task.attributes(), tiles.pointers, task.dtype);
    if (task_monitor().check_finite.load(std::memory_order_relaxed)) check_finite(task, tiles.pointers);
  } catch (...) {
    task_monitor().record_error(std::current_exception());
  }
}

#ifdef TEGULA_CUDA
void run_on_cuda(void** buffers, void* argument) {
  if (task_monitor().failed()) return;
  auto& task = *static_cast<TaskArguments*>(argument);
  const TilePointers tiles(task, buffers);
  try {
    task.op->cuda(task.attributes(), tiles.pointers, task.dtype, starpu_cuda_get_local_stream());
  } catch (...) {
    task_monitor().record_error(std::current_exception());
  }
}
#endif

// Of an op in StarPU's own pictures of a trace: the same in every run, light enough for a black label.
unsigned trace_color(const std::string& name) {
  const auto hash = static_cast<unsigned>(std::hash<std::string>{}(name));
  return 0x606060U + (hash & 0x7f7f7fU);
}

struct NamedCodelet {
  NamedCodelet(const OpInfo& op, DType dtype)
      : symbol("tegula_" + op.name + "_" + std::string(name_of(dtype))) {
    starpu_perfmodel_init(&model);
    model.type = STARPU_HISTORY_BASED;
    model.symbol = symbol.c_str();
    model.footprint = [](starpu_task* task) { return static_cast<TaskArguments*>(task->cl_arg)->footprint; };
    model.size_base = [](starpu_task* task, unsigned) {
      auto& arguments = *static_cast<TaskArguments*>(task->cl_arg);
      return static_cast<std::size_t>(arguments.op->operand_bytes(arguments.attributes(), arguments.dtype));
    };

    starpu_codelet_init(&codelet);
    codelet.cpu_funcs[0] = run_on_cpu;
#ifdef TEGULA_CUDA
    if (op.cuda) {
      codelet.cuda_funcs[0] = run_on_cuda;
      codelet.cuda_flags[0] = STARPU_CUDA_ASYNC;
    }
#endif
    if (simulated) {
      model.type = STARPU_PER_WORKER;
      model.worker_cost_function = [](starpu_task* task, unsigned worker, unsigned) {
        auto& arguments = *static_cast<TaskArguments*>(task->cl_arg);
        return 1e6 * simulation::task_seconds(*arguments.op, arguments.attributes(), arguments.dtype,
                                              simulated_place().device(worker));
      };
      codelet.cuda_funcs[0] = run_on_cpu;  // for StarPU to know that there is one
    }
    codelet.nbuffers = STARPU_VARIABLE_NBUFFERS;
    codelet.model = &model;
    codelet.name = symbol.c_str();
    codelet.color = trace_color(op.name);
  }
  NamedCodelet(const NamedCodelet&) = delete;
  NamedCodelet& operator=(const NamedCodelet&) = delete;

  std::string symbol;
  starpu_perfmodel model = {};
  starpu_codelet codelet = {};
};

}  // namespace

starpu_codelet& codelet(const OpInfo& op, DType dtype) {
  static std::mutex mutex;
  static std::map<std::pair<const OpInfo*, DType>, NamedCodelet> codelets;
  std::scoped_lock lock(mutex);
  return codelets.try_emplace({&op, dtype}, op, dtype).first->second.codelet;
}

starpu_data_handle_t scratch_handle(std::size_t bytes) {
  static std::mutex mutex;
  static std::map<std::size_t, starpu_data_handle_t> handles;
  bytes = scratch_room(bytes);
  std::scoped_lock lock(mutex);
  if (handles.empty())
    before_shutdown().add([] {
      for (auto& [size, handle] : handles) starpu_data_unregister(handle);
      handles.clear();
    });
  starpu_data_handle_t& handle = handles[bytes];
  if (!handle) starpu_variable_data_register(&handle, -1, 0, bytes);
  return handle;
}

}  // namespace tegula::detail
