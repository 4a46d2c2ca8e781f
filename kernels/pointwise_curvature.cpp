// The second derivatives of the pointwise ops.
#include "kernels/pointwise_cpu.hpp"

namespace tegula {

const bool registered = [] {
  pointwise::for_each_of_order<2>([&]<class F>() { Register<Pointwise<F>>(); });
  return true;
}();

}  // namespace tegula
