// Times every registered op on its last sample, for each of its dtypes: GFLOP/s and GB/s, and as a share of what the
// machine can do, measured in the same run: the rate of the op "gemm" in f32, and of memcpy over as many bytes as the op
// touches (a tile that fits into a cache is compared with copying within it). An op is near its limit when either share is.
//
//   build/bench/ops --benchmark_filter='gelu.*f32'
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstring>
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

// Seconds that f takes, the least of several rounds.
template <class F>
double seconds(F&& f) {
  using Clock = std::chrono::steady_clock;
  double best = 1e9;
  for (int round = 0; round < 5; ++round) {
    int calls = 0;
    auto start = Clock::now();
    double elapsed = 0;
    for (; elapsed < 0.02; ++calls) {
      f();
      elapsed = std::chrono::duration<double>(Clock::now() - start).count();
    }
    best = std::min(best, elapsed / calls);
  }
  return best;
}

double gemm_flops_per_s() {
  static const double rate = [] {
    for (const OpInfo* op : registry()) {
      if (op->name != "gemm") continue;
      Task task(*op, f32);
      return task.flops() / seconds([&] { task.run(); });
    }
    return 0.0;
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
  using benchmark::Counter;
  const Task task(op, dtype);
  const double gemm = gemm_flops_per_s(), copy = copy_bytes_per_s(task.bytes());
  for (auto _ : state) {
    task.run();
    benchmark::ClobberMemory();
  }
  state.counters["GFLOP/s"] = Counter(task.flops() * 1e-9, Counter::kIsIterationInvariantRate);
  state.counters["GB/s"] = Counter(task.bytes() * 1e-9, Counter::kIsIterationInvariantRate);
  if (gemm > 0)
    state.counters["of_gemm_%"] = Counter(task.flops() * 100 / gemm, Counter::kIsIterationInvariantRate);
  state.counters["of_copy_%"] = Counter(task.bytes() * 100 / copy, Counter::kIsIterationInvariantRate);
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
