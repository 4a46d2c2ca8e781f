#include "kernels/embedding.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/simd.hpp"

namespace tegula {

namespace {

template <class T>
TEGULA_CLONES void add_row(int cols, const T* x, T* y) {
#pragma GCC ivdep
  for (int c = 0; c < cols; ++c) y[c] = T(Compute<T>(y[c]) + Compute<T>(x[c]));
}

void check(std::int32_t index, std::int32_t rows) {
  if (index < 0 || index >= rows)
    throw std::out_of_range("[embedding] index " + std::to_string(index) + " is outside of the table's " +
                            std::to_string(rows) + " rows");
}

}  // namespace

template <class T>
void Embedding::cpu(In<std::int32_t> index, In<T> table, Acc<T> y) const {
  for (std::int64_t i = 0; i < n; ++i) {
    check(index[i], full_rows);
    const std::int64_t row = index[i] - row_begin;
    T* out = y + i * cols;
    if (row < 0 || row >= rows) {
      if (!accumulate) std::fill_n(out, cols, T(0));
    } else if (accumulate) {
      add_row(cols, table + row * cols, out);
    } else {
      std::copy_n(table + row * cols, cols, out);
    }
  }
}

template <class T>
void EmbeddingGrad::cpu(In<std::int32_t> index, In<T> dy, Acc<T> dtable) const {
  if (!accumulate) std::fill_n(dtable.pointer, std::int64_t{rows} * cols, T(0));
  for (std::int64_t i = 0; i < n; ++i)
    if (const std::int64_t row = index[i] - row_begin; row >= 0 && row < rows)
      add_row(cols, dy + i * cols, dtable + row * cols);
}

const Register<Embedding> registered_embedding;
const Register<EmbeddingGrad> registered_embedding_grad;

}  // namespace tegula
