#include "kernels/write_at.hpp"

#include <algorithm>

namespace tegula {

template <class T>
void WriteAt::cpu(InOut<T> kept, In<T> x) const {
  if (row() < 0 || row() >= length) return;
  for (std::int64_t b = 0; b < batch; ++b)
    std::copy_n(x + b * inner, inner, kept + (b * length + row()) * inner);
}

const Register<WriteAt> registered_write_at;

}  // namespace tegula
