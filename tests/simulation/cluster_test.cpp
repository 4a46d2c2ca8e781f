// Cluster files: what they say, and what they are told where it does not fit.
#include "framework/simulation/cluster.hpp"

#include <doctest/doctest.h>

#include <functional>
#include <stdexcept>
#include <string>

#include "framework/simulation/calibrate.hpp"
#include "kernels/gemm.hpp"

using namespace tegula;
using namespace tegula::simulation;

namespace {

const std::string device = R"([device.core]
gflops = {f32 = 200, f64 = 100}
bandwidth = 10
overhead = 5
efficiency = {gemm = 0.5, other = 0.25}
measured = {"exp f32" = {overhead = 1, bandwidth = 20}}
)",
                  gpu = R"([device.gpu]
gflops = {f32 = 5e4}
bandwidth = 2000
memory = 80
)",
                  node = R"([node.box]
cpu = "core"
cores = 4
memory = 64
network = {bandwidth = 10, latency = 5}
)",
                  nodes = "[[nodes]]\ntype = \"box\"\ncount = 3\n";

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  const std::size_t at = text.find(what);
  REQUIRE(at != std::string::npos);
  return text.replace(at, what.size(), by);
}

std::string message(const std::function<void()>& f) {
  try {
    f();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "(no error)";
}
std::string error_of(const std::string& text) {
  return message([&] { parse_cluster(text, "c.toml"); });
}

}  // namespace

TEST_CASE("a cluster file says what a task takes and where ranks sit") {
  const Cluster cluster = parse_cluster(device + node + nodes, "c.toml");
  const Device& core = cluster.types.at(0).core;
  const Gemm product{.batch = 1, .m = 100, .n = 50, .k = 200, .alpha = 1};
  const double flops = 2.0 * 100 * 50 * 200, bytes = 4 * (100 * 200 + 200 * 50 + 100 * 50);
  CHECK(op_info<Gemm>().operand_bytes(&product, DType::f32) == bytes);
  CHECK(task_seconds(op_info<Gemm>(), &product, DType::f32, core) ==
        doctest::Approx(5e-6 + flops / 100e9 + bytes / 10e9));
  CHECK(task_seconds(op_info<Gemm>(), &product, DType::f64, core) ==
        doctest::Approx(5e-6 + flops / 50e9 + 2 * bytes / 10e9));
  const OpInfo& exponential = find_op("exp");
  const std::vector<std::byte> attributes = exponential.samples().back();
  CHECK(task_seconds(exponential, attributes.data(), DType::f32, core) ==
        doctest::Approx(6e-6 + exponential.operand_bytes(attributes.data(), DType::f32) / 20e9));

  const auto seats = cluster.seats(3);
  CHECK(seats[2].node == 2);
  CHECK(seats[2].workers == 4);
  CHECK(cluster.memory(seats[0]) == 64'000'000'000);
  const auto two = cluster.seats(6, 2);
  CHECK(two[5].node == 2);
  CHECK(two[5].place == 1);
  CHECK(two[5].workers == 2);
  CHECK(cluster.memory(two[5]) == 32'000'000'000);
  CHECK(message([&] { cluster.seats(4); }) ==
        "[cluster] 4 ranks are more than the 3 that c.toml has room for: ask for fewer, or add nodes to it");
  CHECK(message([&] { cluster.seats(4, 5); }) ==
        "[cluster] 5 ranks on each node are more than the 4 cores of a box");

  const Cluster gpus = parse_cluster(
      device + gpu + node + "gpu = \"gpu\"\ngpus = 2\npcie = {bandwidth = 20, latency = 2}\n" + nodes,
      "c.toml");
  CHECK(gpus.seats(6).at(5).node == 2);
  CHECK(gpus.device(gpus.seats(1)[0]).name == "gpu");
  CHECK(gpus.memory(gpus.seats(1)[0]) == 80'000'000'000);
}

TEST_CASE("rates are fitted to what kernels took, and corrected near to those that they miss") {
  using simulation::Sample;
  std::vector<Sample> samples;
  auto formula = [](double flops, double bytes) { return 3e-6 + flops / 50e9 + bytes / 20e9; };
  for (const double flops : {1e5, 4e6, 2e8})
    for (const double bytes : {1e4, 1e6}) samples.push_back({flops, bytes, formula(flops, bytes), 10});
  const Rates rates = simulation::fit(samples);
  CHECK(rates.overhead == doctest::Approx(3e-6));
  CHECK(rates.flops == doctest::Approx(50e9));
  CHECK(rates.bandwidth == doctest::Approx(20e9));

  // One size takes longer than the rates say; a second sample nearly of its size takes as long as they say.
  samples = {{1e8, 1e6, 3 * formula(1e8, 1e6), 10},
             {1.05e8, 1e6, formula(1.05e8, 1e6), 10},
             {1e5, 1e4, formula(1e5, 1e4), 10}};
  Rates corrected = rates;
  corrected.corrections = simulation::corrections(samples, rates);
  REQUIRE(corrected.corrections.size() == 2);
  CHECK(corrected.corrections[0].ratio == doctest::Approx(2).epsilon(0.02));
  CHECK(corrected.corrections[1].ratio == doctest::Approx(1));
  CHECK(corrected.seconds(1e8, 1e6) == doctest::Approx(2 * formula(1e8, 1e6)).epsilon(0.1));
  CHECK(corrected.seconds(2e8, 1e6) > 1.4 * formula(2e8, 1e6));
  CHECK(corrected.seconds(1e11, 1e9) == doctest::Approx(formula(1e11, 1e9)));

  const Cluster cluster = parse_cluster(
      replaced(device, "{overhead = 1,", "{corrections = [[0, 4096, 2.0]], overhead = 1,") + node + nodes,
      "c.toml");
  REQUIRE(cluster.types[0].core.measured.at("exp f32").corrections.size() == 1);
  CHECK(cluster.types[0].core.measured.at("exp f32").corrections[0].ratio == 2);
  for (const char* wrong : {"[[1, 2]]", "3", "[[1, 0, 1]]", "[[1, 2, -1]]", "[1, 2, 3]"})
    CHECK(error_of(
              replaced(device, "{overhead = 1,", std::string("{corrections = ") + wrong + ", overhead = 1,") +
              node + nodes)
              .starts_with("c.toml:6: "));
}

TEST_CASE("what is wrong with a cluster file is told with its line") {
  CHECK(error_of("name = ").starts_with("c.toml:1: not valid TOML: "));
  CHECK(error_of("speed = 3") ==
        "c.toml:1: unknown key 'speed'; known are name, device, node, nodes and wide-area");
  CHECK(error_of(device + node) == "c.toml: has no [[nodes]]: say how many of which type there are");
  CHECK(error_of(device + replaced(node, "\"core\"", "\"h100\"") + nodes) ==
        "c.toml:8: there is no device 'h100'; the file has core");
  CHECK(error_of(device + replaced(node, "bandwidth = 10", "bandwidth = 0") + nodes) ==
        "c.toml:11: a rate of 0: nothing would ever end; give a positive one");
  CHECK(error_of(replaced(device, "f32 = 200", "f32 = -1") + node + nodes) == "c.toml:2: -1 is out of range");
  CHECK(error_of(replaced(device, "f32 = 200", "f31 = 1") + node + nodes) ==
        "c.toml:2: there is no dtype 'f31'; there are f32, f64, bf16 and f16");
  CHECK(error_of(replaced(device, "gemm =", "gem =") + node + nodes) == "c.toml:5: no op is named gem");
  CHECK(error_of(replaced(device, "gemm = 0.5", "gemm = 2") + node + nodes) ==
        "c.toml:5: an efficiency is a share of the peak: at most 1");
  CHECK(error_of(replaced(device, "exp f32", "exp") + node + nodes) ==
        "c.toml:6: name op and dtype, as in \"gemm f32\"");
  CHECK(error_of(replaced(device, "bandwidth = 10\n", "") + node + nodes) ==
        "c.toml:1: device core needs gflops = {f32 = ...} and bandwidth = GB/s");
  CHECK(error_of(device + replaced(node, "cores = 4\n", "") + nodes) ==
        "c.toml:7: node box needs cpu = \"DEVICE\" and cores = N");
  CHECK(error_of(device + gpu + node + "gpu = \"gpu\"\ngpus = 2\n" + nodes) ==
        "c.toml:11: node box needs pcie = {bandwidth = GB/s, latency = us}");
  CHECK(error_of(device + node + replaced(nodes, "box", "bax")) == "c.toml:13: there is no [node.bax]");
  CHECK(error_of(device + node + replaced(nodes, "3", "0")) == "c.toml:14: 0 is out of range");
  const std::string sites = nodes + "site = \"a\"\n" + nodes + "site = \"b\"\n";
  CHECK(error_of(device + node + sites) == "c.toml: no [[wide-area]] link between 'a' and 'b'");
  const std::string wide = "[[wide-area]]\nbetween = [\"a\", \"c\"]\nbandwidth = 1\n";
  CHECK(error_of(device + node + sites + wide) ==
        "c.toml: a wide-area link leads to 'c', where no nodes are");
}
