// One thread per element: it computes the four words of a counter and uses one or two, which the memory's
// speed hides.
#include "kernels/launch.hpp"
#include "kernels/random.hpp"

namespace tegula {

template <class T>
__global__ void fill_kernel(std::int64_t n, T value, T* y) {
  for (std::int64_t i = first_element(); i < n; i += grid_elements()) y[i] = value;
}

template <class T>
__global__ void uniform_kernel(std::int64_t n, Uniform op, T* y) {
  for (std::int64_t i = first_element(); i < n; i += grid_elements())
    y[i] = round_to<T>(op.value(uniform_of<Compute<T>>(op.random.word(op.tile.element(i)))));
}

template <class T>
__global__ void normal_kernel(std::int64_t n, Normal op, T* y) {
  using C = Compute<T>;
  for (std::int64_t i = first_element(); i < n; i += grid_elements()) {
    const std::int64_t element = op.tile.element(i), even = element & ~std::int64_t{1};
    const NormalPair<C> z = normal_of<C>(op.random.word(even), op.random.word(even + 1));
    y[i] = round_to<T>(C(op.mean) + C(op.stddev) * (element == even ? z.even : z.odd));
  }
}

template <class T>
__global__ void dropout_kernel(std::int64_t n, Dropout op, const T* x, T* y) {
  using C = Compute<T>;
  for (std::int64_t i = first_element(); i < n; i += grid_elements())
    y[i] = round_to<T>(C(x[i]) * op.factor<C>(op.random.word(op.tile.element(i))));
}

template <class T>
void Fill::cuda(Stream stream, Out<T> y) const {
  launch(fill_kernel<T>, stream, n, n, round_to<T>(static_cast<Compute<T>>(value)), y.pointer);
}

template <class T>
void Uniform::cuda(Stream stream, Out<T> y) const {
  launch(uniform_kernel<T>, stream, tile.elements(), tile.elements(), *this, y.pointer);
}

template <class T>
void Normal::cuda(Stream stream, Out<T> y) const {
  launch(normal_kernel<T>, stream, tile.elements(), tile.elements(), *this, y.pointer);
}

template <class T>
void Dropout::cuda(Stream stream, In<T> x, Out<T> y) const {
  launch(dropout_kernel<T>, stream, tile.elements(), tile.elements(), *this, x.pointer, y.pointer);
}

const RegisterCuda<Fill> registered_fill;
const RegisterCuda<Uniform> registered_uniform;
const RegisterCuda<Normal> registered_normal;
const RegisterCuda<Dropout> registered_dropout;

}  // namespace tegula
