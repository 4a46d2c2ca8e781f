// Times every registered op on its last sample, for each of its dtypes: GFLOP/s and GB/s, and as a share of
// what the machine can do, measured in the same run: the rate of the op "gemm" in f32, and of memcpy over as
// many bytes as the op touches (a tile that fits into a cache is compared with copying within it). An op is
// near its limit when either share is.
//
//   build/bench/ops --benchmark_filter='gelu.*f32'
#include <benchmark/benchmark.h>

#include <cstring>
#include <ctime>
#include <map>
#include <memory>
#include <random>

#include "kernels/op.hpp"

using namespace tegula;

namespace {

// The operands of one task, filled with the samples that tests use, too.
struct Task {
  const OpInfo& op;
  DType dtype;
  std::vector<std::byte> attributes;
  std::vector<std::unique_ptr<std::byte[]>> memory;
  std::vector<void*> tiles;

  Task(const OpInfo& info, DType run_for) : op(info), dtype(run_for), attributes(info.samples().back()) {
    std::mt19937_64 random(1);
    std::uniform_real_distribution<double> uniform;
    for (int k = 0; k < static_cast<int>(op.operands.size()); ++k) {
      if (!op.has(attributes.data(), k)) {
        tiles.push_back(nullptr);
        continue;
      }
      const std::int64_t n = op.extent(attributes.data(), k, dtype);
      visit_dtype(op.dtype(k, dtype), [&]<class T>() {
        memory.push_back(std::make_unique<std::byte[]>(n * sizeof(T) + 64));
        void* aligned = memory.back().get();
        std::size_t space = n * sizeof(T) + 64;
        T* data = static_cast<T*>(std::align(64, n * sizeof(T), aligned, space));
        for (std::int64_t i = 0; i < n; ++i)
          data[i] = static_cast<T>(op.sample(attributes.data(), k, uniform(random)));
        tiles.push_back(data);
      });
    }
  }
  void run() const { op.cpu(attributes.data(), tiles.data(), dtype); }
  double flops() const { return op.flops(attributes.data()); }
  double bytes() const { return op.bytes(attributes.data(), dtype); }
};

double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// Seconds that f takes, the least of several rounds. Of CPU time, as what is compared with it: other
// processes on the machine then count in neither.
template <class F>
double seconds(F&& f) {
  double best = 1e9;
  for (int round = 0; round < 5; ++round) {
    const double start = cpu_seconds();
    int calls = 0;
    double elapsed = 0;
    for (; elapsed < 0.02; ++calls) {
      f();
      elapsed = cpu_seconds() - start;
    }
    best = std::min(best, elapsed / calls);
  }
  return best;
}

double gemm_flops_per_s() {
  static const double rate = [] {
    const Task task(find_op("gemm"), f32);
    return task.flops() / seconds([&] { task.run(); });
  }();
  return rate;
}

double copy_bytes_per_s(double bytes) {
  static std::map<std::size_t, double> rates;
  const auto half = std::max(std::size_t{64}, static_cast<std::size_t>(bytes / 2));
  double& rate = rates[half];
  if (rate == 0) {
    std::vector<char> from(half, 1), to(half);
    rate = 2.0 * static_cast<double>(half) / seconds([&] {
             std::memcpy(to.data(), from.data(), half);
             benchmark::ClobberMemory();
           });
  }
  return rate;
}

void time_op(benchmark::State& state, const OpInfo& op, DType dtype) {
  const Task task(op, dtype);
  const double gemm = gemm_flops_per_s(), copy = copy_bytes_per_s(task.bytes());
  const double start = cpu_seconds();
  for (auto _ : state) {
    task.run();
    benchmark::ClobberMemory();
  }
  const double runs_per_s = static_cast<double>(state.iterations()) / (cpu_seconds() - start);
  state.counters["GFLOP/s"] = task.flops() * runs_per_s * 1e-9;
  state.counters["GB/s"] = task.bytes() * runs_per_s * 1e-9;
  state.counters["%gemm"] = 100 * task.flops() * runs_per_s / gemm;
  state.counters["%copy"] = 100 * task.bytes() * runs_per_s / copy;
}

}  // namespace

int main(int argc, char** argv) {
  for (const OpInfo* op : registry())
    for (DType dtype : op->dtypes)
      benchmark::RegisterBenchmark((op->name + "/" + std::string(name_of(dtype))).c_str(), time_op, *op,
                                   dtype);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::AddCustomContext("f32 GEMM, GFLOP/s", std::to_string(gemm_flops_per_s() * 1e-9));
  benchmark::AddCustomContext("copy of 256 MiB, GB/s", std::to_string(copy_bytes_per_s(0x1p29) * 1e-9));
  benchmark::RunSpecifiedBenchmarks();
}
