#include "kernels/copy_box.hpp"

#include "kernels/simd.hpp"

namespace tegula {

namespace {

template <class T>
TEGULA_CLONES void add_row(std::int64_t n, const T* from, T* to) {
  using C = Compute<T>;
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) to[i] = T(C(to[i]) + C(from[i]));
}

}  // namespace

template <class T>
void CopyBox::cpu(In<T> src, Acc<T> dst) const {
  const CopyBox b = merged();
  const auto inside = [&](int d, std::int32_t i) {  // of the place i along axis d of dst
    return i >= b.dst_begin[d] && i < b.dst_begin[d] + b.extent[d];
  };
  const bool fills = mode == Mode::fill;
  const T rest = T(value);
  // All rows of dst where the rest is filled, else those of the box.
  Index from = fills ? Index{} : b.dst_begin, count = fills ? b.dst_extent : b.extent;
  if (size(count) == 0) return;
  const std::int64_t length = b.extent[4], before = b.dst_begin[4], width = b.dst_extent[4];
  for (std::int32_t i = from[0]; i < from[0] + count[0]; ++i)
    for (std::int32_t j = from[1]; j < from[1] + count[1]; ++j)
      for (std::int32_t k = from[2]; k < from[2] + count[2]; ++k)
        for (std::int32_t l = from[3]; l < from[3] + count[3]; ++l) {
          T* to =
              dst +
              (((std::int64_t{i} * b.dst_extent[1] + j) * b.dst_extent[2] + k) * b.dst_extent[3] + l) * width;
          if (!inside(0, i) || !inside(1, j) || !inside(2, k) || !inside(3, l)) {
            std::fill_n(to, width, rest);
            continue;
          }
          const std::int64_t plane = std::int64_t{i - b.dst_begin[0] + b.src_begin[0]} * b.src_extent[1] + j -
                                     b.dst_begin[1] + b.src_begin[1];
          const std::int64_t row =
              (plane * b.src_extent[2] + k - b.dst_begin[2] + b.src_begin[2]) * b.src_extent[3] + l -
              b.dst_begin[3] + b.src_begin[3];
          const T* x = src + row * b.src_extent[4] + b.src_begin[4];
          if (mode == Mode::add) {
            add_row(length, x, to + before);
            continue;
          }
          std::copy_n(x, length, to + before);
          if (!fills) continue;
          std::fill_n(to, before, rest);
          std::fill_n(to + before + length, width - before - length, rest);
        }
}

const Register<CopyBox> registered_copy_box;

}  // namespace tegula
