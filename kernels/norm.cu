#include "kernels/combine.hpp"
#include "kernels/norm.hpp"
#include "kernels/warp.hpp"

namespace tegula {

namespace {

template <class C, class T>
__device__ NormMoments<C> moments(const NormShape& s, const T* x) {
  C mean = 0, squares = 0;
  for (int c = lane(); s.centred && c < s.cols; c += 32) mean += C(x[c]);
  mean = over_lanes(mean, Plus{}) / static_cast<C>(s.cols);
  for (int c = lane(); c < s.cols; c += 32) squares += (C(x[c]) - mean) * (C(x[c]) - mean);
  squares = over_lanes(squares, Plus{}) / static_cast<C>(s.cols);
  return {mean, 1 / math::sqrt(squares + static_cast<C>(s.epsilon))};
}

}  // namespace

template <class T>
__global__ void norm_kernel(NormShape s, const T* x, const T* weight, const T* bias, T* y) {
  using C = Compute<T>;
  for (std::int64_t r = first_row(); r < s.rows; r += grid_rows()) {
    const std::int64_t row = r * s.cols;
    const auto [mean, scale] = moments<C>(s, x + row);
    for (int c = lane(); c < s.cols; c += 32) {
      const C value = (C(x[row + c]) - mean) * scale * C(weight[c]);
      y[row + c] = T(bias ? value + C(bias[c]) : value);
    }
  }
}

template <class T>
__global__ void norm_grad_kernel(NormShape s, const T* x, const T* weight, const T* dy, T* dx) {
  using C = Compute<T>;
  for (std::int64_t r = first_row(); r < s.rows; r += grid_rows()) {
    const std::int64_t row = r * s.cols;
    const auto [mean, scale] = moments<C>(s, x + row);
    C along = 0, sum = 0;
    for (int c = lane(); c < s.cols; c += 32) {
      const C g = C(dy[row + c]) * C(weight[c]);
      along += g * (C(x[row + c]) - mean) * scale;
      sum += g;
    }
    along = over_lanes(along, Plus{}) / static_cast<C>(s.cols);
    sum = s.centred ? over_lanes(sum, Plus{}) / static_cast<C>(s.cols) : C(0);
    for (int c = lane(); c < s.cols; c += 32)
      dx[row + c] = T(scale * (C(dy[row + c]) * C(weight[c]) - (C(x[row + c]) - mean) * scale * along - sum));
  }
}

template <class T>
__global__ void norm_moments_kernel(NormShape s, const T* x, Compute<T>* moments_of) {
  for (std::int64_t r = first_row(); r < s.rows; r += grid_rows()) {
    const auto [mean, scale] = moments<Compute<T>>(s, x + r * s.cols);
    if (lane() == 0) moments_of[2 * r] = mean, moments_of[2 * r + 1] = scale;
  }
}

template <class T>
__global__ void norm_weight_grad_kernel(NormShape s, bool accumulate, const T* x, const T* dy,
                                        const Compute<T>* moments_of, T* dweight) {
  using C = Compute<T>;
  for (std::int64_t c = first_element(); c < s.cols; c += grid_elements()) {
    C sum = accumulate ? C(dweight[c]) : C(0);
    for (std::int64_t r = 0; r < s.rows; ++r)
      sum += C(dy[r * s.cols + c]) * (C(x[r * s.cols + c]) - moments_of[2 * r]) * moments_of[2 * r + 1];
    dweight[c] = T(sum);
  }
}

template <class T>
void Norm::cuda(Stream stream, In<T> x, In<T> weight, Maybe<T> bias, Out<T> y) const {
  launch(norm_kernel<T>, stream, 32 * std::int64_t{rows}, NormShape(*this), x.pointer, weight.pointer,
         has_bias ? bias.pointer : nullptr, y.pointer);
}

template <class T>
void NormGrad::cuda(Stream stream, In<T> x, In<T> weight, In<T> dy, Out<T> dx) const {
  launch(norm_grad_kernel<T>, stream, 32 * std::int64_t{rows}, NormShape(*this), x.pointer, weight.pointer,
         dy.pointer, dx.pointer);
}

template <class T>
void NormWeightGrad::cuda(Stream stream, In<T> x, In<T> dy, Acc<T> dweight, Scratch<float> work) const {
  auto* moments_of = reinterpret_cast<Compute<T>*>(work.pointer);
  launch(norm_moments_kernel<T>, stream, 32 * std::int64_t{rows}, NormShape(*this), x.pointer, moments_of);
  launch(norm_weight_grad_kernel<T>, stream, std::int64_t{cols}, NormShape(*this), accumulate != 0, x.pointer,
         dy.pointer, static_cast<const Compute<T>*>(moments_of), dweight.pointer);
}

const RegisterCuda<Norm> registered_norm_cuda;
const RegisterCuda<NormGrad> registered_norm_grad_cuda;
const RegisterCuda<NormWeightGrad> registered_norm_weight_grad_cuda;

}  // namespace tegula
