// The figures of a trace small enough to work out by hand, and the names of tasks.
#include <doctest/doctest.h>

#include "apps/trace/starpu_files.hpp"
#include "apps/trace/trace.hpp"

using namespace tegula::trace;

namespace {

// Rank 0:  a 0-40          c 60-100      rank 1:  b 50-70 (waits for a message of a, 40-50)
// c waits for b's answer; d, on rank 1 from 0 to 30, for nothing.
Trace small() {
  Trace trace;
  trace.run = {{"command", "x"}, {"date", "today"}, {"starpu", "1.4"}, {"plan", ""}, {"gemm_peak_gflops", 2}};
  trace.ranks = {{{"host", "h"}}, {{"host", "h"}}};
  trace.workers = {{0, "CPU0", "cpu"}, {1, "CPU0", "cpu"}, {0, "MPI", "mpi"}};
  trace.layers = {"one", "two"};
  trace.ops = {"gemm", "add"};
  const auto task = [&](int worker, double start, double end, int layer, int op, double flops,
                        std::uint64_t job, std::vector<std::uint64_t> needs) {
    trace.tasks.push_back({worker, start, end, layer, op, Pass::forward, "0", -1, 1, flops, job});
    trace.jobs[job] = {std::move(needs), end - start};
  };
  task(0, 0, 40, 0, 0, 40e3, 1, {});
  task(1, 0, 30, 1, 1, 0, 2, {});
  task(1, 50, 70, 0, 0, 10e3, 3, {11});
  task(0, 80, 100, 1, 1, 0, 4, {12, 1});
  trace.jobs[10] = {{1}, 0};  // sent
  trace.jobs[11] = {{10}, 0};
  trace.jobs[12] = {{3}, 0};
  trace.states = {{0, 40, 80, State::idle},  {1, 30, 45, State::idle}, {1, 45, 50, State::scheduling},
                  {1, 70, 100, State::idle}, {2, 40, 50, State::mpi},  {2, 50, 100, State::polling}};
  trace.messages = {{0, 1, 40, 50, 1000, "a"}, {1, 0, 70, 80, 24, "b"}};
  trace.memory = {{0, "node 0", {0, 10, 20}, {5, 70, 60}}};
  trace.duration = 100;
  return trace;
}

}  // namespace

TEST_CASE("figures are those worked out by hand") {
  const auto summary = report(small())["summary"];
  const auto& bounds = summary["bounds"];
  CHECK(bounds["makespan_s"].get<double>() == doctest::Approx(100e-6));
  CHECK(bounds["area_bound_s"].get<double>() == doctest::Approx(55e-6));     // 110 us on two workers
  CHECK(bounds["critical_path_s"].get<double>() == doctest::Approx(80e-6));  // a, b, c
  CHECK(bounds["efficiency"].get<double>() == doctest::Approx(0.8));

  const auto& gemm = summary["per_op"][0];
  CHECK(gemm["name"] == "gemm");
  CHECK(gemm["tasks"] == 2);
  CHECK(gemm["seconds"].get<double>() == doctest::Approx(60e-6));
  CHECK(gemm["share"].get<double>() == doctest::Approx(60.0 / 110));
  CHECK(gemm["gflops"].get<double>() == doctest::Approx(50e3 / 60e-6 * 1e-9));
  CHECK(gemm["share_of_peak"].get<double>() == doctest::Approx(50e3 / 60e-6 / 2e9));
  CHECK(summary["per_layer"][0]["name"] == "one");
  CHECK(summary["per_layer"][1]["seconds"].get<double>() == doctest::Approx(50e-6));

  CHECK(summary["per_worker"].size() == 2);
  CHECK(summary["per_worker"][1]["scheduling_s"].get<double>() == doctest::Approx(5e-6));
  CHECK(summary["per_worker"][1]["idle_s"].get<double>() == doctest::Approx(45e-6));
  const auto& first = summary["per_rank"][0];
  CHECK(first["mpi_s"].get<double>() == doctest::Approx(10e-6));
  CHECK(first["sent_bytes"] == 1000);
  CHECK(first["received_bytes"] == 24);
  CHECK(first["peak_bytes"] == 70);
  CHECK(first["bubble_share"].get<double>() == doctest::Approx(0.4));
  CHECK(summary["per_rank"][1]["bubble_share"].get<double>() == doctest::Approx(0.5));
}

TEST_CASE("what got slower is said, largest first") {
  Trace slower = small();
  slower.tasks.back().end += 50;  // an add
  slower.duration += 50;
  const std::string text = difference(report(small()), report(slower));
  CHECK(text.find("makespan") < text.find("add"));
  CHECK(text.find("+100.0 %") != std::string::npos);  // adds: 50 us, then 100
  CHECK(text.find("gemm") == std::string::npos);
  CHECK(difference(report(slower), report(slower)) == "no difference\n");
}

TEST_CASE("tasks that wait for each other are refused") {
  Trace trace = small();
  trace.jobs[1].needs = {4};
  CHECK_THROWS_WITH(report(trace), doctest::Contains("in a circle"));
}

TEST_CASE("names of tasks") {
  const auto is = [](const char* name, const char* layer, const char* op, const char* tile, Pass pass,
                     int micro_batch) {
    const Label label = parse_label(name);
    CHECK_MESSAGE(label.layer == layer, name);
    CHECK_MESSAGE(label.op == op, name);
    CHECK_MESSAGE(label.tile == tile, name);
    CHECK_MESSAGE(label.pass == pass, name);
    CHECK_MESSAGE(label.micro_batch == micro_batch, name);
  };
  is("linear1.contract[0,3]", "linear1", "contract", "0,3", Pass::forward, -1);
  is("gradient.block0.attention.contract[2]#12", "block0.attention", "contract", "2", Pass::backward, 12);
  is("gradient.gradient.x.add[]", "x", "add", "", Pass::backward, -1);
  is("update.linear1.sgd[0]", "linear1", "sgd", "0", Pass::update, -1);
  is("update.sqrt[]", "optimizer", "sqrt", "", Pass::update, -1);
  is("exp[1]", "other", "exp", "1", Pass::forward, -1);
  is("execute_on_all_wrapper", "other", "execute_on_all_wrapper", "", Pass::forward, -1);
  is("", "other", "unnamed", "", Pass::forward, -1);
}

TEST_CASE("files that StarPU's reader has not written") {
  CHECK_THROWS_WITH(parse_tasks("JobId: 0_1\nStartTime: soon\n", "tasks.rec"),
                    doctest::Contains("tasks.rec:2: a time is 'soon'"));
  CHECK_THROWS_WITH(parse_messages("Size: 3\n\n", "comms.rec"),
                    doctest::Contains("comms.rec:2: a message is 'without ranks'"));
  CHECK_THROWS_WITH(parse_activity("10 x 0_w0 WS \"Sl\"\n", "paje.trace"),
                    doctest::Contains("paje.trace:1: a time is 'x'"));
}
