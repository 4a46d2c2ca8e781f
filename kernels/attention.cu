// One warp has a query (or, for the gradients of keys and values, a key): lanes go through the elements of a head. Plain
// kernels that are right and use little memory; tensor cores are future work.
#include "kernels/attention.hpp"
#include "kernels/combine.hpp"
#include "kernels/warp.hpp"

namespace tegula {

namespace {

struct Query {
  int b, i, h, g;
  __device__ Query(const AttentionShape& s, std::int64_t row)
      : b(static_cast<int>(row / s.groups / s.heads / s.queries)),
        i(static_cast<int>(row / s.groups / s.heads % s.queries)),
        h(static_cast<int>(row / s.groups % s.heads)),
        g(static_cast<int>(row % s.groups)) {}
};

template <class C, class T>
__device__ C dot(const T* a, const T* b, int dim) {
  C sum = 0;
  for (int d = lane(); d < dim; d += 32) sum += C(a[d]) * C(b[d]);
  return over_lanes(sum, Plus{});
}

// A row of a head that the lanes of a warp share.
constexpr int largest_dim = 256;
template <class C>
struct Row {
  C part[largest_dim / 32] = {};

  template <class T>
  __device__ void load(const T* from, int dim, C factor) {
    for (int d = lane(), n = 0; d < dim; d += 32, ++n) part[n] = factor * C(from[d]);
  }
  template <class T>
  __device__ void add(C factor, const T* from, int dim) {
    for (int d = lane(), n = 0; d < dim; d += 32, ++n) part[n] += factor * C(from[d]);
  }
  template <class T>
  __device__ void store(T* to, int dim) const {
    for (int d = lane(), n = 0; d < dim; d += 32, ++n) to[d] = T(part[n]);
  }
};

void check_dim(const AttentionShape& shape) {
  if (shape.dim > largest_dim)
    throw std::invalid_argument("[attention] heads of " + std::to_string(shape.dim) +
                                " elements; the CUDA kernel takes " + std::to_string(largest_dim));
}

}  // namespace

// Two passes over the keys: the log-sum-exp first, so that y is summed once and rounded once.
template <class T>
__global__ void attention_kernel(AttentionShape s, bool accumulate, const T* q, const T* k, const T* v, T* y,
                                 double* lse) {
  using C = Compute<T>;
  const C none = -INFINITY;
  for (std::int64_t row = first_row(); row < s.rows(); row += grid_rows()) {
    const Query at(s, row);
    const int seen = s.visible(at.i);
    const C before = accumulate ? C(lse[row]) : none;
    C most = before, sum = before > none ? C(1) : C(0);
    for (int j = 0; j < seen; ++j) {
      const C score = C(s.scale) * dot<C>(q + row * s.dim, k + s.key_row(at.b, j, at.h) * s.dim, s.dim);
      const C larger = Maximum{}(most, score);
      sum = sum * exp_or_zero(most - larger) + exp_or_zero(score - larger);
      most = larger;
    }
    const C now = sum > 0 ? most + math::log(sum) : none;
    const C shrink = before > none ? math::exp(before - now) : C(0);
    Row<C> sum_of_values;
    if (accumulate) sum_of_values.load(y + row * s.dim, s.dim, shrink);
    for (int j = 0; j < seen; ++j) {
      const std::int64_t key = s.key_row(at.b, j, at.h) * s.dim;
      const C p = exp_or_zero(C(s.scale) * dot<C>(q + row * s.dim, k + key, s.dim) - now) *
                  s.kept<C>(at.b, at.h, at.g, at.i, j);
      sum_of_values.add(p, v + key, s.dim);
    }
    sum_of_values.store(y + row * s.dim, s.dim);
    if (lane() == 0) lse[row] = static_cast<double>(now);
  }
}

template <class T>
__global__ void attention_grad_query_kernel(AttentionShape s, bool accumulate, const T* q, const T* k,
                                            const T* v, const T* y, const T* dy, const double* lse, T* dq) {
  using C = Compute<T>;
  for (std::int64_t row = first_row(); row < s.rows(); row += grid_rows()) {
    const Query at(s, row);
    const std::int64_t place = row * s.dim;
    const C along_y = dot<C>(dy + place, y + place, s.dim);
    Row<C> sum;
    if (accumulate) sum.load(dq + place, s.dim, C(1));
    for (int j = 0; j < s.visible(at.i); ++j) {
      const std::int64_t key = s.key_row(at.b, j, at.h) * s.dim;
      const C p = exp_or_zero(C(s.scale) * dot<C>(q + place, k + key, s.dim) - C(lse[row]));
      const C dp = dot<C>(dy + place, v + key, s.dim) * s.kept<C>(at.b, at.h, at.g, at.i, j);
      const C ds = C(s.scale) * p * (dp - along_y);
      sum.add(ds, k + key, s.dim);
    }
    sum.store(dq + place, s.dim);
  }
}

template <class T>
__global__ void attention_grad_key_value_kernel(AttentionShape s, bool accumulate, const T* q, const T* k,
                                                const T* v, const T* y, const T* dy, const double* lse, T* dk,
                                                T* dv) {
  using C = Compute<T>;
  const std::int64_t rows = std::int64_t{s.batch} * s.keys * s.heads;
  for (std::int64_t row = first_row(); row < rows; row += grid_rows()) {
    const int b = static_cast<int>(row / s.heads / s.keys), j = static_cast<int>(row / s.heads % s.keys),
              h = static_cast<int>(row % s.heads);
    const std::int64_t key = row * s.dim;
    Row<C> sum_k, sum_v;
    if (accumulate) sum_k.load(dk + key, s.dim, C(1)), sum_v.load(dv + key, s.dim, C(1));
    for (int g = 0; g < s.groups; ++g)
      for (int i = 0; i < s.queries; ++i) {
        if (j >= s.visible(i)) continue;
        const std::int64_t query = s.query_row(b, i, h, g), place = query * s.dim;
        const C p = exp_or_zero(C(s.scale) * dot<C>(q + place, k + key, s.dim) - C(lse[query]));
        const C keep = s.kept<C>(b, h, g, i, j);
        const C ds = C(s.scale) * p *
                     (dot<C>(dy + place, v + key, s.dim) * keep - dot<C>(dy + place, y + place, s.dim));
        sum_k.add(ds, q + place, s.dim);
        sum_v.add(p * keep, dy + place, s.dim);
      }
    sum_k.store(dk + key, s.dim);
    sum_v.store(dv + key, s.dim);
  }
}

template <class T>
void Attention::cuda(Stream stream, In<T> q, In<T> k, In<T> v, Acc<T> y, Acc<double> lse, Scratch<T>) const {
  check_dim(shape);
  launch(attention_kernel<T>, stream, 32 * shape.rows(), shape, accumulate != 0, q.pointer, k.pointer,
         v.pointer, y.pointer, lse.pointer);
}

template <class T>
void AttentionGradQuery::cuda(Stream stream, In<T> q, In<T> k, In<T> v, In<T> y, In<T> dy, In<double> lse,
                              Acc<T> dq, Scratch<T>) const {
  check_dim(shape);
  launch(attention_grad_query_kernel<T>, stream, 32 * shape.rows(), shape, accumulate != 0, q.pointer,
         k.pointer, v.pointer, y.pointer, dy.pointer, lse.pointer, dq.pointer);
}

template <class T>
void AttentionGradKeyValue::cuda(Stream stream, In<T> q, In<T> k, In<T> v, In<T> y, In<T> dy, In<double> lse,
                                 Acc<T> dk, Acc<T> dv, Scratch<T>) const {
  check_dim(shape);
  launch(attention_grad_key_value_kernel<T>, stream,
         32 * std::int64_t{shape.batch} * shape.keys * shape.heads, shape, accumulate != 0, q.pointer,
         k.pointer, v.pointer, y.pointer, dy.pointer, lse.pointer, dk.pointer, dv.pointer);
}

template <class T>
void AttentionGrad::cuda(Stream stream, In<T> q, In<T> k, In<T> v, In<T> y, In<T> dy, In<double> lse,
                         Acc<T> dq, Acc<T> dk, Acc<T> dv, Scratch<T> work) const {
  AttentionGradQuery by_query;
  AttentionGradKeyValue by_key;
  by_query.shape = by_key.shape = shape;
  by_query.accumulate = by_key.accumulate = accumulate;
  by_query.cuda<T>(stream, q, k, v, y, dy, lse, dq, work);
  by_key.cuda<T>(stream, q, k, v, y, dy, lse, dk, dv, work);
}

const RegisterCuda<Attention> registered_attention_cuda;
const RegisterCuda<AttentionGradQuery> registered_attention_grad_query_cuda;
const RegisterCuda<AttentionGradKeyValue> registered_attention_grad_key_value_cuda;
const RegisterCuda<AttentionGrad> registered_attention_grad_cuda;

}  // namespace tegula
