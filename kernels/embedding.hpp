// Rows of a table by integer index, and the sums that are its gradient, on one tile of the table's rows.
#pragma once

#include <cmath>
#include <vector>

#include "kernels/op.hpp"

namespace tegula {

// y[i, c] = [y[i, c] +] table[index[i] - row_begin, c], or 0 where index[i] lies in another tile of the table. index is
// (n), y (n, cols), table (rows, cols), of which row_begin is the first row's place in the whole. An index outside of
// [0, full_rows) is an error: std::out_of_range on the CPU, NaN on the GPU, which cannot throw.
struct Embedding {
  static constexpr std::string_view name = "embedding";
  std::int32_t n, rows, cols, row_begin, full_rows, accumulate;

  bool accumulates() const { return accumulate != 0; }
  std::array<std::int64_t, 3> extents(DType) const {
    return {n, std::int64_t{rows} * cols, std::int64_t{n} * cols};
  }
  double flops() const { return 0; }
  double sample(int operand, double u) const { return operand == 0 ? std::floor(u * full_rows) : 2 * u - 1; }
  static std::vector<Embedding> samples() {
    return {{1, 1, 1, 0, 1, 0}, {7, 5, 3, 0, 5, 0},   {9, 4, 6, 3, 11, 1},
            {0, 4, 4, 0, 4, 1}, {33, 1, 17, 2, 9, 0}, {512, 256, 128, 0, 256, 0}};
  }

  void reference(In<std::int32_t> index, In<double> table, Acc<double> y) const {
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t c = 0; c < cols; ++c) {
        const int row = index[i] - row_begin;
        y[i * cols + c] = (accumulate ? y[i * cols + c] : 0) +
                          (row >= 0 && row < rows ? table[std::int64_t{row} * cols + c] : 0);
      }
  }
  template <class T>
  void cpu(In<std::int32_t> index, In<T> table, Acc<T> y) const;
  template <class T>
  void cuda(Stream stream, In<std::int32_t> index, In<T> table, Acc<T> y) const;
};

// dtable[r, c] = [dtable[r, c] +] sum of dy[i, c] over the i with index[i] == row_begin + r, in the order of i. Not for bf16 and f16,
// which would be rounded at every addition: a table of which gradients are wanted is f32.
struct EmbeddingGrad {
  static constexpr std::string_view name = "embedding_grad";
  static constexpr double ulps = 64;
  using dtypes = Types<float, double>;
  std::int32_t n, rows, cols, row_begin, full_rows, accumulate;

  bool accumulates() const { return accumulate != 0; }
  std::array<std::int64_t, 3> extents(DType) const {
    return {n, std::int64_t{n} * cols, std::int64_t{rows} * cols};
  }
  double flops() const { return static_cast<double>(n) * cols; }
  double sample(int operand, double u) const { return operand == 0 ? std::floor(u * full_rows) : 2 * u - 1; }
  static std::vector<EmbeddingGrad> samples() {
    return {{1, 1, 1, 0, 1, 0}, {7, 5, 3, 0, 5, 0},   {9, 4, 6, 3, 11, 1},
            {0, 4, 4, 0, 4, 0}, {12, 2, 17, 2, 9, 0}, {512, 256, 128, 0, 256, 0}};
  }

  void reference(In<std::int32_t> index, In<double> dy, Acc<double> dtable) const {
    for (std::int64_t i = 0; !accumulate && i < std::int64_t{rows} * cols; ++i) dtable[i] = 0;
    for (std::int64_t i = 0; i < n; ++i)
      if (const int row = index[i] - row_begin; row >= 0 && row < rows)
        for (std::int64_t c = 0; c < cols; ++c) dtable[std::int64_t{row} * cols + c] += dy[i * cols + c];
  }
  template <class T>
  void cpu(In<std::int32_t> index, In<T> dy, Acc<T> dtable) const;
  template <class T>
  void cuda(Stream stream, In<std::int32_t> index, In<T> dy, Acc<T> dtable) const;
};

}  // namespace tegula
