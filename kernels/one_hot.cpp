#include "kernels/one_hot.hpp"

#include <algorithm>

namespace tegula {

template <class T>
void OneHot::cpu(In<std::int32_t> target, Out<T> y) const {
  std::fill_n(y.pointer, std::int64_t{rows} * cols, T(0));
  for (std::int64_t r = 0; r < rows; ++r)
    if (const std::int64_t c = std::int64_t{target[r]} - class_begin; c >= 0 && c < cols)
      y[r * cols + c] = T(1);
}

const Register<OneHot> registered_one_hot;

}  // namespace tegula
