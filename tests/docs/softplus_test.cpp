// Enters the pointwise op of CONTRIBUTING.md into the registry, derivatives included, as kernels/pointwise_*.cpp do
// with those in the list.
#include <doctest/doctest.h>

#include "kernels/pointwise_cpu.hpp"

namespace tegula {

namespace pointwise {
#include "softplus.inc"
}  // namespace pointwise

const bool registered_softplus = [] {
  auto enter = []<class F>() { Register<Pointwise<F>>(); };
  auto enter_with_slopes = [&]<class F>() {
    enter.operator()<F>();
    pointwise::for_each_slope<F>(enter);
  };
  enter.operator()<pointwise::Softplus>();
  pointwise::for_each_slope<pointwise::Softplus>(enter_with_slopes);
  return true;
}();

}  // namespace tegula

TEST_CASE("the ops of the document are in the registry, so that the generated tests have them") {
  for (const char* name : {"softplus", "softplus_slope", "softplus_slope_slope0", "cumulative_sum"}) {
    CAPTURE(name);
    CHECK_NOTHROW(tegula::find_op(name));
  }
}
