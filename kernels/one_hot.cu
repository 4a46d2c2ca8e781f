#include "kernels/launch.hpp"
#include "kernels/one_hot.hpp"

namespace tegula {

template <class T>
__global__ void one_hot_kernel(std::int64_t n, int cols, int class_begin, const std::int32_t* target, T* y) {
  for (std::int64_t i = first_element(); i < n; i += grid_elements())
    y[i] = T(target[i / cols] == class_begin + static_cast<int>(i % cols) ? 1.0f : 0.0f);
}

template <class T>
void OneHot::cuda(Stream stream, In<std::int32_t> target, Out<T> y) const {
  const std::int64_t n = std::int64_t{rows} * cols;
  launch(one_hot_kernel<T>, stream, n, n, cols, class_begin, target.pointer, y.pointer);
}

const RegisterCuda<OneHot> registered_one_hot_cuda;

}  // namespace tegula
