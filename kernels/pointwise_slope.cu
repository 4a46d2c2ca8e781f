// The first derivatives of the pointwise ops.
#include "kernels/pointwise_cuda.hpp"

namespace tegula {

const bool registered = [] {
  pointwise::for_each_of_order<1>([&]<class F>() { RegisterCuda<Pointwise<F>>(); });
  return true;
}();

}  // namespace tegula
