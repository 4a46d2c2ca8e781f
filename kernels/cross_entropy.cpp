#include "kernels/cross_entropy.hpp"

#include "kernels/simd.hpp"

namespace tegula {

namespace {

template <class C, class T>
TEGULA_CLONES void log_sums_of_exp(std::int64_t rows, std::int64_t cols, const T* logits, C* sums) {
  for (std::int64_t r = 0; r < rows; ++r, logits += cols) {
    const C shift = finite_or_zero(max_of<C>(logits, cols));
    sums[r] = shift + std::log(sum_of_exp<C>(logits, cols, shift));
  }
}

template <class C, class T>
TEGULA_CLONES void gradient(std::int64_t rows, std::int32_t cols, std::int32_t class_begin, const T* logits,
                            const std::int32_t* target, const T* log_sum_exp, const T* dloss, T* dlogits) {
  for (std::int64_t r = 0; r < rows; ++r, logits += cols, dlogits += cols) {
    const C shift = C(log_sum_exp[r]), scale = C(dloss[r]);
    const std::int32_t hit = target[r];
#pragma GCC ivdep
    for (std::int32_t c = 0; c < cols; ++c)
      dlogits[c] = T((exp_or_zero(C(logits[c]) - shift) - (class_begin + c == hit ? C(1) : C(0))) * scale);
  }
}

}  // namespace

template <class T>
void SoftmaxCrossEntropy::cpu(In<T> logits, In<std::int32_t> target, Out<T> loss, Out<T> log_sum_exp) const {
  using C = Compute<T>;
  constexpr int block = 64;
  for (std::int64_t begin = 0; begin < rows; begin += block) {
    const std::int64_t end = std::min<std::int64_t>(rows, begin + block);
    C sums[block];
    log_sums_of_exp<C, T>(end - begin, cols, logits + begin * cols, sums);
    for (std::int64_t r = begin; r < end; ++r) {
      if (target[r] < 0 || target[r] >= cols)
        throw std::out_of_range("[softmax_cross_entropy] the target of row " + std::to_string(r) + " is " +
                                std::to_string(target[r]) + ", but there are " + std::to_string(cols) +
                                " classes");
      log_sum_exp[r] = T(sums[r - begin]);
      loss[r] = T(sums[r - begin] - C(logits[r * cols + target[r]]));
    }
  }
}

template <class T>
void SoftmaxCrossEntropyGrad::cpu(In<T> logits, In<std::int32_t> target, In<T> log_sum_exp, In<T> dloss,
                                  Out<T> dlogits) const {
  gradient<Compute<T>, T>(rows, cols, class_begin, logits, target, log_sum_exp, dloss, dlogits);
}

const Register<SoftmaxCrossEntropy> registered_cross_entropy;
const Register<SoftmaxCrossEntropyGrad> registered_cross_entropy_grad;

}  // namespace tegula
