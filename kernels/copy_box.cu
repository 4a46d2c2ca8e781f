#include "kernels/copy_box.hpp"
#include "kernels/launch.hpp"

namespace tegula {

// Of dst, in order: the box, or what is around it.
template <class T>
__global__ void fill_around_kernel(CopyBox b, std::int64_t n, const T* src, T* dst) {
  for (std::int64_t i = first_element(); i < n; i += grid_elements()) {
    std::int64_t rest = i, from = 0, stride = 1;
    bool inside = true;
    for (int d = CopyBox::axes - 1; d >= 0; rest /= b.dst_extent[d], stride *= b.src_extent[d--]) {
      const std::int64_t at = rest % b.dst_extent[d] - b.dst_begin[d];
      inside = inside && at >= 0 && at < b.extent[d];
      from += (b.src_begin[d] + at) * stride;
    }
    dst[i] = inside ? src[from] : T(b.value);
  }
}

// The box alone.
template <class T>
__global__ void copy_box_kernel(CopyBox b, std::int64_t n, const T* src, T* dst) {
  using C = Compute<T>;
  for (std::int64_t i = first_element(); i < n; i += grid_elements()) {
    const T x = src[CopyBox::offset(b.src_extent, b.src_begin, b.extent, i)];
    T& y = dst[CopyBox::offset(b.dst_extent, b.dst_begin, b.extent, i)];
    y = b.mode == CopyBox::Mode::add ? T(C(y) + C(x)) : x;
  }
}

template <class T>
void CopyBox::cuda(Stream stream, In<T> src, Acc<T> dst) const {
  const CopyBox b = merged();
  if (mode == Mode::fill)
    launch(fill_around_kernel<T>, stream, size(b.dst_extent), b, size(b.dst_extent), src.pointer,
           dst.pointer);
  else
    launch(copy_box_kernel<T>, stream, size(b.extent), b, size(b.extent), src.pointer, dst.pointer);
}

const RegisterCuda<CopyBox> registered_copy_box_cuda;

}  // namespace tegula
