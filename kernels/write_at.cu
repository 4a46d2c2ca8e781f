#include "kernels/launch.hpp"
#include "kernels/write_at.hpp"

namespace tegula {

template <class T>
__global__ void write_at_kernel(WriteAt op, T* kept, const T* x) {
  for (std::int64_t i = first_element(); i < std::int64_t{op.batch} * op.inner; i += grid_elements())
    kept[(i / op.inner * op.length + op.row()) * op.inner + i % op.inner] = x[i];
}

template <class T>
void WriteAt::cuda(Stream stream, InOut<T> kept, In<T> x) const {
  if (row() < 0 || row() >= length) return;
  launch(write_at_kernel<T>, stream, std::int64_t{batch} * inner, *this, kept.pointer, x.pointer);
}

const RegisterCuda<WriteAt> registered_write_at_cuda;

}  // namespace tegula
