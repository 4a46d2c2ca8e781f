// The first derivatives of the pointwise ops.
#include "kernels/pointwise_cpu.hpp"

namespace tegula {

const bool registered_slopes = [] {
  auto enter = []<class G>() { Register<Pointwise<G>>(); };
  [&]<class... F>(Types<F...>) { (pointwise::for_each_slope<F>(enter), ...); }(PointwiseOps{});
  return true;
}();

}  // namespace tegula
