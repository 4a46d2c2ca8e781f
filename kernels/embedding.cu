#include "kernels/embedding.hpp"
#include "kernels/launch.hpp"

namespace tegula {

template <class T>
__global__ void embedding_kernel(Embedding op, const std::int32_t* index, const T* table, T* y) {
  using C = Compute<T>;
  for (std::int64_t i = first_element(); i < std::int64_t{op.n} * op.cols; i += grid_elements()) {
    const int at = index[i / op.cols], row = at - op.row_begin;
    C value = op.accumulate ? C(y[i]) : C(0);
    if (row >= 0 && row < op.rows) value += C(table[std::int64_t{row} * op.cols + i % op.cols]);
    if (at < 0 || at >= op.full_rows) value = NAN;
    y[i] = T(value);
  }
}

// A thread has a column and goes through all indices, so that each sum is in their order.
template <class T>
__global__ void embedding_grad_kernel(EmbeddingGrad op, const std::int32_t* index, const T* dy, T* dtable) {
  using C = Compute<T>;
  for (std::int64_t c = first_element(); c < op.cols; c += grid_elements()) {
    for (std::int64_t r = 0; !op.accumulate && r < op.rows; ++r) dtable[r * op.cols + c] = T(0.0f);
    for (std::int64_t i = 0; i < op.n; ++i) {
      const int row = index[i] - op.row_begin;
      if (row < 0 || row >= op.rows) continue;
      T& sum = dtable[std::int64_t{row} * op.cols + c];
      sum = T(C(sum) + C(dy[i * op.cols + c]));
    }
  }
}

template <class T>
void Embedding::cuda(Stream stream, In<std::int32_t> index, In<T> table, Acc<T> y) const {
  launch(embedding_kernel<T>, stream, std::int64_t{n} * cols, *this, index.pointer, table.pointer, y.pointer);
}

template <class T>
void EmbeddingGrad::cuda(Stream stream, In<std::int32_t> index, In<T> dy, Acc<T> dtable) const {
  launch(embedding_grad_kernel<T>, stream, std::int64_t{cols}, *this, index.pointer, dy.pointer,
         dtable.pointer);
}

const RegisterCuda<Embedding> registered_embedding_cuda;
const RegisterCuda<EmbeddingGrad> registered_embedding_grad_cuda;

}  // namespace tegula
