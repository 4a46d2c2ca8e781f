#include "kernels/combine.hpp"
#include "kernels/cross_entropy.hpp"
#include "kernels/warp.hpp"

namespace tegula {

template <class T>
__global__ void cross_entropy_kernel(std::int64_t rows, int cols, const T* logits, const std::int32_t* target,
                                     T* loss, T* log_sum_exp) {
  using C = Compute<T>;
  for (std::int64_t r = first_row(); r < rows; r += grid_rows()) {
    const T* row = logits + r * cols;
    C most = -INFINITY, sum = 0;
    for (int c = lane(); c < cols; c += 32) most = Maximum{}(most, C(row[c]));
    const C shift = finite_or_zero(over_lanes(most, Maximum{}));
    for (int c = lane(); c < cols; c += 32) sum += exp_or_zero(C(row[c]) - shift);
    sum = shift + math::log(over_lanes(sum, Plus{}));
    if (lane() != 0) continue;
    const bool exists = target[r] >= 0 && target[r] < cols;
    log_sum_exp[r] = T(sum);
    loss[r] = T(exists ? sum - C(row[target[r]]) : C(NAN));
  }
}

template <class T>
__global__ void cross_entropy_grad_kernel(std::int64_t n, int cols, int class_begin, const T* logits,
                                          const std::int32_t* target, const T* log_sum_exp, const T* dloss,
                                          T* dlogits) {
  using C = Compute<T>;
  for (std::int64_t i = first_element(); i < n; i += grid_elements()) {
    const std::int64_t r = i / cols;
    const C hit = target[r] == class_begin + static_cast<int>(i % cols) ? 1 : 0;
    dlogits[i] = T((exp_or_zero(C(logits[i]) - C(log_sum_exp[r])) - hit) * C(dloss[r]));
  }
}

template <class T>
void SoftmaxCrossEntropy::cuda(Stream stream, In<T> logits, In<std::int32_t> target, Out<T> loss,
                               Out<T> log_sum_exp) const {
  launch(cross_entropy_kernel<T>, stream, 32 * std::int64_t{rows}, std::int64_t{rows}, cols, logits.pointer,
         target.pointer, loss.pointer, log_sum_exp.pointer);
}

template <class T>
void SoftmaxCrossEntropyGrad::cuda(Stream stream, In<T> logits, In<std::int32_t> target, In<T> log_sum_exp,
                                   In<T> dloss, Out<T> dlogits) const {
  const std::int64_t n = std::int64_t{rows} * cols;
  launch(cross_entropy_grad_kernel<T>, stream, n, n, cols, class_begin, logits.pointer, target.pointer,
         log_sum_exp.pointer, dloss.pointer, dlogits.pointer);
}

const RegisterCuda<SoftmaxCrossEntropy> registered_cross_entropy_cuda;
const RegisterCuda<SoftmaxCrossEntropyGrad> registered_cross_entropy_grad_cuda;

}  // namespace tegula
