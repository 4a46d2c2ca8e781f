#include "tests/graph/runtime.hpp"

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

namespace {
tegula::Runtime* shared = nullptr;
}

tegula::Runtime& tegula::test::runtime() { return *shared; }

int main(int argc, char** argv) {
  tegula::Runtime runtime(argc, argv, {.cpu_workers = 2, .print_table = false});
  shared = &runtime;
  doctest::Context context(argc, argv);
  return context.run();
}
