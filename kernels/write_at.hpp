// One row of a tensor that is kept from step to step: keys and values of the newest token, say.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/op.hpp"

namespace tegula {

// kept[b, position - begin] = x[b], if that is a row of this tile; kept is (batch, length, inner), x (batch, inner), begin
// the tile's place in the whole.
struct WriteAt {
  static constexpr std::string_view name = "write_at";
  static const Scalar scalars[1];
  std::int32_t batch, length, inner, begin;
  double position = 0;

  std::array<std::int64_t, 2> extents(DType) const {
    return {std::int64_t{batch} * length * inner, std::int64_t{batch} * inner};
  }
  double flops() const { return 0; }
  static std::vector<WriteAt> samples() {
    return {{1, 1, 1, 0, 0}, {2, 5, 3, 4, 6}, {2, 5, 3, 4, 3},
            {2, 5, 3, 4, 9}, {0, 3, 4, 0, 1}, {4, 256, 256, 0, 17}};
  }
  TEGULA_FN std::int64_t row() const { return static_cast<std::int64_t>(position) - begin; }

  void reference(InOut<double> kept, In<double> x) const {
    if (row() < 0 || row() >= length) return;
    for (std::int64_t i = 0; i < std::int64_t{batch} * inner; ++i)
      kept[(i / inner * length + row()) * inner + i % inner] = x[i];
  }
  template <class T>
  void cpu(InOut<T> kept, In<T> x) const;
  template <class T>
  void cuda(Stream stream, InOut<T> kept, In<T> x) const;
};

inline constexpr Scalar WriteAt::scalars[1] = {{"position", offsetof(WriteAt, position)}};

}  // namespace tegula
