#include "kernels/reduce.hpp"

#include "kernels/simd.hpp"

namespace tegula {

namespace {

// What is summed up over x: x itself, its maximum, or exp(x - shift). `fill` is an x that changes nothing.
struct Sum : Plus {
  static constexpr double neutral = 0, fill = 0;
  template <class C>
  TEGULA_FN C term(C x, C) const {
    return x;
  }
};
struct Max : Maximum {
  static constexpr double neutral = -INFINITY, fill = -INFINITY;
  template <class C>
  TEGULA_FN C term(C x, C) const {
    return x;
  }
};
struct SumExp : Plus {
  static constexpr double neutral = 0, fill = -INFINITY;
  template <class C>
  TEGULA_FN C term(C x, C shift) const {
    return exp_or_zero(x - shift);
  }
};

constexpr int chunk = 256;  // outputs in flight where dimensions inside the reduced ones are kept

// total = total (+) the n terms of x
template <class Op, class C, class T>
TEGULA_CLONES void add_row(Op op, const T* x, std::int64_t n, C shift, double& total) {
  constexpr std::int64_t block = 8192;
  for (; n > 0; x += block, n -= block) {
    const C sum = fold(
        std::min(n, block), C(op.neutral), C(op.fill), [=](std::int64_t i) TEGULA_INLINE { return C(x[i]); },
        [=](C v) TEGULA_INLINE { return op.term(v, shift); }, op);
    total = op(total, double(sum));
  }
}

// total[j] = total[j] (+) the terms x[i stride + j], i < n
template <class Op, class C, class T>
TEGULA_CLONES void add_columns(Op op, const T* x, std::int64_t n, std::int64_t stride, int width,
                               const C* shift, double* total) {
  constexpr std::int64_t block = 64;
  for (; n > 0; n -= block) {
    C sum[chunk];
    std::fill_n(sum, width, C(op.neutral));
    std::int64_t i = std::min(n, block);
    for (; i >= 4; i -= 4, x += 4 * stride) {  // four rows at once: fewer passes over `sum`
#pragma GCC ivdep
      for (int j = 0; j < width; ++j)
        sum[j] = op(sum[j],
                    op(op(op.term(C(x[j]), shift[j]), op.term(C(x[stride + j]), shift[j])),
                       op(op.term(C(x[2 * stride + j]), shift[j]), op.term(C(x[3 * stride + j]), shift[j]))));
    }
    for (; i > 0; --i, x += stride) {
#pragma GCC ivdep
      for (int j = 0; j < width; ++j) sum[j] = op(sum[j], op.term(C(x[j]), shift[j]));
    }
#pragma GCC ivdep
    for (int j = 0; j < width; ++j) total[j] = op(total[j], double(sum[j]));
  }
}

// Reduces into `width` neighbouring outputs, the first of which starts at x.
template <class Op, class C, class T>
void reduce(Op op, const T* x, const Reduce::Loops& outer, std::int64_t n, std::int64_t stride, bool by_rows,
            int width, const C* shift, double* total) {
  std::fill_n(total, width, op.neutral);
  for (std::int64_t i = 0; i < outer.size(); ++i) {
    const T* from = x + outer.offset(i);
    if (by_rows)
      add_row<Op, C, T>(op, from, n, shift[0], total[0]);
    else
      add_columns<Op, C, T>(op, from, n, stride, width, shift, total);
  }
}

}  // namespace

template <class T>
void Reduce::cpu(In<T> x, Acc<T> y) const {
  using C = Compute<T>;
  const Loops kept = loops(false);
  Loops outer = loops(true);
  std::int64_t n = 1, stride = 1;
  if (outer.count > 0) {
    n = outer.extent[--outer.count];
    stride = outer.stride[outer.count];
  }
  // The innermost loop over memory is either reduced, or kept.
  const bool by_rows = kept.count == 0 || kept.stride[kept.count - 1] != 1;
  const std::int64_t line = by_rows ? 1 : kept.extent[kept.count - 1];
  const std::int64_t outputs = kept.size();
  C shift[chunk] = {};
  double total[chunk];
  for (std::int64_t i = 0; i < outputs;) {
    const int width = static_cast<int>(std::min<std::int64_t>(chunk, line - i % line));
    const T* from = x + kept.offset(i);
    auto run = [&](auto op) {
      reduce<decltype(op), C, T>(op, from, outer, n, stride, by_rows, width, shift, total);
    };
    if (kind == Kind::sum)
      run(Sum{});
    else
      run(Max{});
    if (kind == Kind::log_sum_exp) {
      for (int j = 0; j < width; ++j) shift[j] = finite_or_zero(C(total[j]));
      run(SumExp{});
    }
    for (int j = 0; j < width; ++j, ++i)
      y[i] = T(C(result(total[j], shift[j], accumulate ? double(C(y[i])) : -INFINITY)));
  }
}

const Register<Reduce> registered_reduce;

}  // namespace tegula
