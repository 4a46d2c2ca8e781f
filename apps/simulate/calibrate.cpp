// tegula-simulate calibrate: describes the machine that is here, from what its kernels took.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <thread>

#include "apps/simulate/commands.hpp"
#include "apps/training.hpp"
#include "framework/simulation/calibrate.hpp"

namespace tegula::apps {

namespace {

// Seconds of a core that a task costs beside its kernel, where all cores are workers and one of them submits as well: tasks of one
// element, a chain of them for each worker.
double task_overhead() {
  Runtime runtime(0, nullptr, {.print_table = false});
  const int workers = runtime.cpu_workers();
  std::vector<Tile> from, to;
  for (int i = 0; i < workers; ++i) {
    from.emplace_back(runtime, std::vector<std::int64_t>{1}, DType::f32);
    to.emplace_back(runtime, std::vector<std::int64_t>{1}, DType::f32);
    from.back().write(std::vector<float>{1});
  }
  constexpr int tasks = 20000;
  double best = INFINITY;
  for (int i = 0; i < 3; ++i) {
    const io::Stopwatch watch;
    for (int k = 0; k < tasks; ++k) submit::apply(pointwise::Exp{}, from[k % workers], to[k % workers]);
    runtime.wait();
    best = std::min(best, watch.seconds() / tasks * workers);
  }
  return best;
}

// Bytes per second that one core copies, of data beyond its caches.
double copy_bandwidth() {
  std::vector<char> from(std::size_t{256} << 20, 1), to(from.size());
  double best = 0;
  for (int i = 0; i < 3; ++i) {
    const io::Stopwatch watch;
    std::memcpy(to.data(), from.data(), from.size());
    best = std::max(best, 2.0 * static_cast<double>(from.size()) / watch.seconds());
  }
  return best;
}

std::string describe(const std::map<std::string, simulation::Rates, std::less<>>& measured) {
  const auto cores = static_cast<int>(std::max(std::thread::hardware_concurrency(), 1U));
  const double memory =
                   static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE)),
               copied = copy_bandwidth() * 1e-9;
  std::string text = fmt::format(
      "# Measured by tegula-simulate calibrate. Messages between ranks go through memory; the network is a "
      "guess.\n"
      "name = \"this machine\"\n\n[device.core]\ngflops = {{f32 = {:.0f}}}\nbandwidth = {:.1f}\noverhead = "
      "{:.2f}\n"
      "\n[device.core.measured]  # overhead in us, gflops, bandwidth in GB/s; corrections: "
      "flops, bytes, ratio\n",
      gemm_peak() * 1e-9, copied, task_overhead() * 1e6);
  for (const auto& [op, rates] : measured) {
    text += fmt::format("\"{}\" = {{overhead = {:.3f}", op, rates.overhead * 1e6);
    if (std::isfinite(rates.flops)) text += fmt::format(", gflops = {:.4g}", rates.flops * 1e-9);
    if (std::isfinite(rates.bandwidth)) text += fmt::format(", bandwidth = {:.4g}", rates.bandwidth * 1e-9);
    text += ", corrections = [";
    for (const simulation::Rates::Correction& c : rates.corrections)
      text += fmt::format("{}[{:.4g}, {:.4g}, {:.3f}]", &c == rates.corrections.data() ? "" : ", ", c.flops,
                          c.bytes, c.ratio);
    text += "]}\n";
  }
  return text + fmt::format(
                    "\n[node.this]\ncpu = \"core\"\ncores = {}\nmemory = {:.1f}\n"
                    "shared-memory = {{bandwidth = {:.1f}, latency = 50}}\nnetwork = {{bandwidth = 1, "
                    "latency = 50}}\n"
                    "\n[[nodes]]\ntype = \"this\"\n",
                    cores, memory * 1e-9, copied / 2);
}

}  // namespace

int calibrate(int argc, char** argv) {
  std::string out, models;
  io::Options options("tegula-simulate calibrate",
                      "Runs a program, and describes this machine by what its kernels took: tegula-simulate "
                      "calibrate --out this.toml -- "
                      "build/apps/fashion_mnist --epochs 1");
  options.add("out", &out, "TOML file to write")->required()->type_name("FILE");
  options
      .add("models", &models,
           "folder that keeps what was measured, for a next call to add to (default: none does)")
      ->type_name("DIR");
  const auto end =
      std::find_if(argv, argv + argc, [](const char* word) { return std::strcmp(word, "--") == 0; });
  if (auto code = options.parse(static_cast<int>(end - argv), argv)) return *code;
  if (argv + argc - end < 2)
    throw std::invalid_argument("calibrate: no program to run: add -- and its command line");

  namespace fs = std::filesystem;
  std::string folder = models;
  if (models.empty()) {
    folder = (fs::temp_directory_path() / "tegula-calibrate-XXXXXX").string();
    if (!mkdtemp(folder.data())) throw std::system_error(errno, std::generic_category(), folder);
  }
  io::make_writable_folder(folder);
  // Where StarPU keeps its models, for the program and then for this process.
  setenv("STARPU_HOME", fs::absolute(folder).c_str(), 1);
  setenv("STARPU_HOSTNAME", "calibration", 1);
  setenv("STARPU_SILENT", "1", 1);  // about ops that have not run
  if (const std::string failed = run_program({end + 1, argv + argc}); !failed.empty())
    throw std::runtime_error(failed + "; nothing is calibrated");
  const auto measured = simulation::measured_rates();
  if (measured.empty())
    throw std::runtime_error(std::string(end[1]) + ": has run no kernel long enough for a model of it");
  io::write_file(out, describe(measured));
  if (models.empty()) fs::remove_all(folder);
  fmt::print("{}: {} ops measured\n", out, measured.size());
  return 0;
}

}  // namespace tegula::apps
