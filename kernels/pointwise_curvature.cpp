// The second derivatives of the pointwise ops.
#include "kernels/pointwise_cpu.hpp"

namespace tegula {

const bool registered_curvatures = [] {
  auto enter = []<class G>() { Register<Pointwise<G>>(); };
  auto of_slope = [&]<class S>() { pointwise::for_each_slope<S>(enter); };
  [&]<class... F>(Types<F...>) { (pointwise::for_each_slope<F>(of_slope), ...); }(PointwiseOps{});
  return true;
}();

}  // namespace tegula
