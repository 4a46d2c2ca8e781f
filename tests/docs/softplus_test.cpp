// Enters the pointwise op of CONTRIBUTING.md into the registry, derivatives included, as kernels/pointwise_*.cpp do
// with those in the list.
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
