// The tests of every registered op, derived from its statement: for all samples and dtypes. A new op is
// tested without a line here.
#include <doctest/doctest.h>

#include <cstdio>
#include <set>

#include "kernels/device.hpp"
#include "task.hpp"

using namespace tegula;
using namespace tegula::test;

namespace {

// Calls f(op, dtype, attributes) in a subcase for each op and dtype, and for all samples of the op.
template <class F>
void for_each_sample(F&& f) {
  for (const OpInfo* op : registry()) {
    for (DType dtype : op->dtypes) {
      SUBCASE((op->name + " " + std::string(name_of(dtype))).c_str()) {
        int number = 0;
        for (const auto& attributes : op->samples()) {
          INFO("sample " << number << " of " << op->name << " for " << std::string(name_of(dtype)));
          f(*op, dtype, attributes);
          ++number;
        }
      }
    }
  }
}

Task reference_of(const Task& task) {
  Task exact(task.op, task.attributes, f64, task.dtype);
  exact.run_reference();
  return exact;
}

void check_outputs(const Task& task, const Task& exact) {
  for (int k = 0; k < task.count(); ++k) {
    if (!task.writes(k)) continue;
    CAPTURE(k);
    CHECK(difference(task.operands[k], exact.operands[k], task.op.ulps, task.dtype) == "");
  }
}

}  // namespace

TEST_SUITE("kernels") {
  TEST_CASE("the registry is in order") {
    std::set<std::string> names;
    for (const OpInfo* op : registry()) {
      CAPTURE(op->name);
      CHECK(names.insert(op->name).second);
      CHECK(!op->dtypes.empty());
      CHECK_MESSAGE(!op->samples().empty(), "nothing to test it with");
      for (const Scalar& scalar : op->scalars) CHECK(scalar.offset + sizeof(double) <= op->attributes_bytes);
      CHECK(&find_op(op->name) == op);
    }
    CHECK(std::is_sorted(registry().begin(), registry().end(),
                         [](auto* a, auto* b) { return a->name < b->name; }));
    CHECK(names.size() >= 100);
    CHECK_THROWS_WITH_AS(find_op("no such"), "no op is named no such", std::invalid_argument);
  }

  TEST_CASE("CPU kernels compute what the reference says, and touch nothing else") {
    for_each_sample([](const OpInfo& op, DType dtype, const std::vector<std::byte>& attributes) {
      Task task(op, attributes, dtype, dtype);
      const Task before = task;
      task.run_cpu();
      check_outputs(task, reference_of(before));
      for (int k = 0; k < task.count(); ++k) {
        CAPTURE(k);
        CHECK(task.operands[k].guards_intact());
        if (!task.writes(k) && task.access(k) != Access::scratch)
          CHECK(task.operands[k].same_bits(before.operands[k]));
      }
    });
  }

  TEST_CASE("CPU kernels give the same bits at any alignment") {
    for_each_sample([](const OpInfo& op, DType dtype, const std::vector<std::byte>& attributes) {
      Task aligned(op, attributes, dtype, dtype);
      aligned.run_cpu();
      for (int shift : {1, 3}) {
        Task shifted(op, attributes, dtype, dtype, shift);
        shifted.run_cpu();
        for (int k = 0; k < aligned.count(); ++k) {
          CAPTURE(k);
          CAPTURE(shift);
          CHECK(shifted.operands[k].guards_intact());
          if (aligned.writes(k)) CHECK(shifted.operands[k].same_bits(aligned.operands[k]));
        }
      }
    });
  }

  TEST_CASE("CUDA kernels compute what the reference says") {
    const Device* device = find_device();
    if (device == nullptr) {
      std::puts("skipped: no CUDA device");
      return;
    }
    for_each_sample([&](const OpInfo& op, DType dtype, const std::vector<std::byte>& attributes) {
      const bool has_cuda_body = op.cuda != nullptr;
      REQUIRE(has_cuda_body);
      Task task(op, attributes, dtype, dtype);
      const Task exact = reference_of(task);
      device->run(task.op, task.attributes.data(), task.tiles(), dtype);
      check_outputs(task, exact);
    });
  }
}
