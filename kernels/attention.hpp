// Scaled dot-product attention of one tile of queries to one tile of keys, and its gradients, without a score matrix that
// outlives a block of queries: Dao et al., FlashAttention, 2022; Rabe and Staats, 2021.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/random.hpp"

namespace tegula {

// What the kernels have in common. q, y and their gradients are (batch, queries, heads, groups, dim), lse (batch, queries,
// heads, groups), k, v and their gradients (batch, keys, heads, dim): `groups` query heads share a head of keys and
// values (grouped-query attention; 1 in plain multi-head attention).
//
//   s[q, k] = scale <q, k>, or -inf where causal and k lies behind q;   p = exp(s - lse);   y = sum_k drop(p) v
//
// Of the sequences the tile holds queries from query_begin and keys from key_begin on. Elements of p are dropped by their
// place in (full_batch, full_heads, groups, full_queries, full_keys).
struct AttentionShape {
  std::int32_t batch, queries, keys, heads, groups, dim;
  std::int32_t causal = 0;
  std::int32_t batch_begin = 0, head_begin = 0, query_begin = 0, key_begin = 0;
  std::int32_t full_heads = 0, full_queries = 0, full_keys = 0;
  double scale = 1, dropout = 0;
  double position = 0;  // added to query_begin: of new queries to keys that are kept from step to step
  RandomStream random{0, 0, 0};

  static constexpr int block = 64;  // queries at once

  TEGULA_FN std::int64_t rows() const { return std::int64_t{batch} * queries * heads * groups; }
  std::int64_t query_size() const { return rows() * dim; }
  std::int64_t key_size() const { return std::int64_t{batch} * keys * heads * dim; }
  // How many keys of this tile, from the first, query `i` of this tile sees.
  TEGULA_FN int visible(int i) const {
    if (!causal) return keys;
    const int most = query_begin + static_cast<int>(position) + i + 1 - key_begin;
    return most < 0 ? 0 : most < keys ? most : keys;
  }
  double pairs() const {  // of a query and a key that it sees, over all heads
    double sum = 0;
    for (int i = 0; i < queries; ++i) sum += visible(i);
    return sum * batch * heads * groups;
  }
  // Which row of q, y and their gradients, of k, v and theirs.
  TEGULA_FN std::int64_t query_row(int b, int i, int h, int g) const {
    return ((std::int64_t{b} * queries + i) * heads + h) * groups + g;
  }
  TEGULA_FN std::int64_t key_row(int b, int j, int h) const {
    return (std::int64_t{b} * keys + j) * heads + h;
  }
  // What p[b, h, g, i, j] is multiplied by.
  template <class C>
  TEGULA_FN C kept(int b, int h, int g, int i, int j) const {
    if (dropout == 0) return 1;
    const std::int64_t head = (std::int64_t{batch_begin + b} * full_heads + (head_begin + h)) * groups + g;
    const std::int64_t element = (head * full_queries + (query_begin + i)) * full_keys + (key_begin + j);
    const bool keep = random.word(element) >> 8 >= static_cast<std::uint32_t>(dropout * 0x1p24);
    return keep ? C(1 / (1 - dropout)) : C(0);
  }
  // Of the type computed in, of which bf16 and f16 need two each: `matrices` of a row per query of a block and a column per key,
  // and in those the operands besides.
  std::int64_t scratch_size(DType dtype, int matrices) const {
    const std::int64_t block_rows = std::min(block, queries);
    const std::int64_t products = matrices * block_rows * keys;
    return is_half(dtype) ? 2 * (products + 4 * (block_rows + keys) * dim) + 1 : products;
  }

  // The definition: scores of one query, 0 where it sees no key.
  std::vector<double> scores(const double* q, const double* k, int b, int i, int h, int g) const {
    std::vector<double> s(visible(i), 0);
    for (int j = 0; j < visible(i); ++j)
      for (int d = 0; d < dim; ++d)
        s[j] += scale * q[query_row(b, i, h, g) * dim + d] * k[key_row(b, j, h) * dim + d];
    return s;
  }
  template <class Visit>
  void for_each_query(Visit&& visit) const {
    for (int b = 0; b < batch; ++b)
      for (int i = 0; i < queries; ++i)
        for (int h = 0; h < heads; ++h)
          for (int g = 0; g < groups; ++g) visit(b, i, h, g);
  }

  static std::vector<AttentionShape> shapes() {
    return {
        {1, 1, 1, 1, 1, 1},
        {2, 5, 7, 3, 1, 4, 0, 0, 0, 0, 0, 3, 5, 7, 0.5},
        {1, 9, 9, 2, 3, 5, 1, 0, 0, 0, 0, 2, 9, 9, 0.4},
        {2, 6, 4, 1, 2, 3, 1, 1, 2, 6, 4, 5, 12, 16, 0.6, 0.3, 0, {7, 3, 2}},
        {1, 70, 130, 1, 1, 17, 1, 0, 0, 80, 20, 1, 150, 150, 0.25},
        {1, 4, 3, 1, 1, 2, 1, 0, 0, 0, 2, 1, 4, 5, 1},        // queries that see no key of the tile
        {2, 1, 8, 2, 1, 3, 1, 0, 0, 0, 0, 2, 1, 8, 1, 0, 5},  // a new query and six keys
        {0, 4, 4, 1, 1, 2, 1, 0, 0, 0, 0, 1, 4, 4, 1},
        {4, 256, 256, 4, 1, 64, 1, 0, 0, 0, 0, 4, 256, 256, 0.125},
    };
  }
};

template <class Op>
inline constexpr Scalar scalars_of_shape[2] = {
    {"step", offsetof(Op, shape) + offsetof(AttentionShape, random) + offsetof(RandomStream, step)},
    {"position", offsetof(Op, shape) + offsetof(AttentionShape, position), /*optional=*/true}};

// (y, lse) = attention or, where accumulate, what earlier tiles of keys gave merged with it. A query that has seen no key
// has y = 0 and lse = -inf.
struct Attention {
  static constexpr std::string_view name = "attention";
  static constexpr double ulps = 256;  // of sums over keys of exponentials of sums
  static const Scalar scalars[2];
  AttentionShape shape;
  std::int64_t accumulate = 0;  // 0 or 1; of 64 bits, so that there is no padding

  bool accumulates() const { return accumulate != 0; }
  std::array<std::int64_t, 6> extents(DType dtype) const {
    return {shape.query_size(), shape.key_size(), shape.key_size(),
            shape.query_size(), shape.rows(),     shape.scratch_size(dtype, 1)};
  }
  double flops() const { return shape.pairs() * (4.0 * shape.dim + 12); }
  static std::vector<Attention> samples() {
    std::vector<Attention> all;
    for (const AttentionShape& shape : AttentionShape::shapes())
      all.insert(all.end(), {{shape, 1}, {shape, 0}});
    return all;
  }

  void reference(In<double> q, In<double> k, In<double> v, Acc<double> y, Acc<double> lse,
                 Scratch<double>) const {
    shape.for_each_query([&](int b, int i, int h, int g) {
      const std::int64_t row = shape.query_row(b, i, h, g);
      double* out = y + row * shape.dim;
      const double before = accumulate ? lse[row] : -std::numeric_limits<double>::infinity();
      const std::vector<double> s = shape.scores(q, k, b, i, h, g);
      double most = before, sum = 0;
      for (double score : s) most = std::max(most, score);
      if (std::isinf(most)) {
        lse[row] = most;
        std::fill_n(out, shape.dim, 0);
        return;
      }
      sum = std::exp(before - most);
      for (double score : s) sum += std::exp(score - most);
      lse[row] = most + std::log(sum);
      for (int d = 0; d < shape.dim; ++d) {
        double value = accumulate ? out[d] * std::exp(before - lse[row]) : 0;
        for (int j = 0; j < static_cast<int>(s.size()); ++j)
          value += std::exp(s[j] - lse[row]) * shape.kept<double>(b, h, g, i, j) *
                   v[shape.key_row(b, j, h) * shape.dim + d];
        out[d] = value;
      }
    });
  }
  template <class T>
  void cpu(In<T> q, In<T> k, In<T> v, Acc<T> y, Acc<double> lse, Scratch<T> work) const;
  template <class T>
  void cuda(Stream stream, In<T> q, In<T> k, In<T> v, Acc<T> y, Acc<double> lse, Scratch<T> work) const;
};

// Which of the gradients a kernel computes.
enum class AttentionGradients { all, query, key_value };

// The gradients, or, where accumulate, what they were plus them, of <dy, y> with respect to q, k and v, for y and lse of
// whole sequences:  dv = drop(p)^T dy,  ds = p (drop(dy v^T) - <dy, y>),  dq = scale ds k,  dk = scale ds^T q.
template <AttentionGradients of>
struct AttentionGradBase {
  static constexpr double ulps = 256;
  static constexpr bool of_query = of != AttentionGradients::key_value,
                        of_key = of != AttentionGradients::query;
  AttentionShape shape;
  std::int64_t accumulate = 0;  // 0 or 1

  bool accumulates() const { return accumulate != 0; }
  double sample(int operand, double u) const { return operand == 5 ? 2 + u : 2 * u - 1; }
  double flops() const {
    return shape.pairs() * ((4.0 + (of_query ? 2 : 0) + (of_key ? 4 : 0)) * shape.dim + 12);
  }

  void define(const double* q, const double* k, const double* v, const double* y, const double* dy,
              const double* lse, double* dq, double* dk, double* dv) const {
    const int dim = shape.dim;
    if (!accumulate) {
      if (of_query) std::fill_n(dq, shape.query_size(), 0);
      if (of_key) std::fill_n(dk, shape.key_size(), 0), std::fill_n(dv, shape.key_size(), 0);
    }
    shape.for_each_query([&](int b, int i, int h, int g) {
      const std::int64_t row = shape.query_row(b, i, h, g);
      const std::vector<double> s = shape.scores(q, k, b, i, h, g);
      double along_y = 0;
      for (int d = 0; d < dim; ++d) along_y += dy[row * dim + d] * y[row * dim + d];
      for (int j = 0; j < static_cast<int>(s.size()); ++j) {
        const std::int64_t key = shape.key_row(b, j, h);
        const double p = std::exp(s[j] - lse[row]), keep = shape.kept<double>(b, h, g, i, j);
        double dp = 0;
        for (int d = 0; d < dim; ++d) dp += dy[row * dim + d] * v[key * dim + d];
        const double ds = shape.scale * p * (dp * keep - along_y);
        for (int d = 0; d < dim; ++d) {
          if (of_query) dq[row * dim + d] += ds * k[key * dim + d];
          if (of_key) {
            dk[key * dim + d] += ds * q[row * dim + d];
            dv[key * dim + d] += p * keep * dy[row * dim + d];
          }
        }
      }
    });
  }
};

struct AttentionGrad : AttentionGradBase<AttentionGradients::all> {
  static constexpr std::string_view name = "attention_grad";
  static const Scalar scalars[2];
  std::array<std::int64_t, 10> extents(DType dtype) const {
    const std::int64_t queries = shape.query_size(), keys = shape.key_size();
    return {queries,      keys,    keys, queries, queries,
            shape.rows(), queries, keys, keys,    shape.scratch_size(dtype, 2)};
  }
  static std::vector<AttentionGrad> samples();
  void reference(In<double> q, In<double> k, In<double> v, In<double> y, In<double> dy, In<double> lse,
                 Acc<double> dq, Acc<double> dk, Acc<double> dv, Scratch<double>) const {
    define(q, k, v, y, dy, lse, dq, dk, dv);
  }
  template <class T>
  void cpu(In<T> q, In<T> k, In<T> v, In<T> y, In<T> dy, In<double> lse, Acc<T> dq, Acc<T> dk, Acc<T> dv,
           Scratch<T> work) const;
  template <class T>
  void cuda(Stream stream, In<T> q, In<T> k, In<T> v, In<T> y, In<T> dy, In<double> lse, Acc<T> dq, Acc<T> dk,
            Acc<T> dv, Scratch<T> work) const;
};

struct AttentionGradQuery : AttentionGradBase<AttentionGradients::query> {
  static constexpr std::string_view name = "attention_grad_query";
  static const Scalar scalars[2];
  std::array<std::int64_t, 8> extents(DType dtype) const {
    const std::int64_t queries = shape.query_size(), keys = shape.key_size();
    return {queries, keys, keys, queries, queries, shape.rows(), queries, shape.scratch_size(dtype, 2)};
  }
  static std::vector<AttentionGradQuery> samples();
  void reference(In<double> q, In<double> k, In<double> v, In<double> y, In<double> dy, In<double> lse,
                 Acc<double> dq, Scratch<double>) const {
    define(q, k, v, y, dy, lse, dq, nullptr, nullptr);
  }
  template <class T>
  void cpu(In<T> q, In<T> k, In<T> v, In<T> y, In<T> dy, In<double> lse, Acc<T> dq, Scratch<T> work) const;
  template <class T>
  void cuda(Stream stream, In<T> q, In<T> k, In<T> v, In<T> y, In<T> dy, In<double> lse, Acc<T> dq,
            Scratch<T> work) const;
};

struct AttentionGradKeyValue : AttentionGradBase<AttentionGradients::key_value> {
  static constexpr std::string_view name = "attention_grad_key_value";
  static const Scalar scalars[2];
  std::array<std::int64_t, 9> extents(DType dtype) const {
    const std::int64_t queries = shape.query_size(), keys = shape.key_size();
    return {queries, keys, keys, queries, queries, shape.rows(), keys, keys, shape.scratch_size(dtype, 2)};
  }
  static std::vector<AttentionGradKeyValue> samples();
  void reference(In<double> q, In<double> k, In<double> v, In<double> y, In<double> dy, In<double> lse,
                 Acc<double> dk, Acc<double> dv, Scratch<double>) const {
    define(q, k, v, y, dy, lse, nullptr, dk, dv);
  }
  template <class T>
  void cpu(In<T> q, In<T> k, In<T> v, In<T> y, In<T> dy, In<double> lse, Acc<T> dk, Acc<T> dv,
           Scratch<T> work) const;
  template <class T>
  void cuda(Stream stream, In<T> q, In<T> k, In<T> v, In<T> y, In<T> dy, In<double> lse, Acc<T> dk, Acc<T> dv,
            Scratch<T> work) const;
};

inline constexpr Scalar Attention::scalars[2] = {scalars_of_shape<Attention>[0],
                                                 scalars_of_shape<Attention>[1]};
inline constexpr Scalar AttentionGrad::scalars[2] = {scalars_of_shape<AttentionGrad>[0],
                                                     scalars_of_shape<AttentionGrad>[1]};
inline constexpr Scalar AttentionGradQuery::scalars[2] = {scalars_of_shape<AttentionGradQuery>[0],
                                                          scalars_of_shape<AttentionGradQuery>[1]};
inline constexpr Scalar AttentionGradKeyValue::scalars[2] = {scalars_of_shape<AttentionGradKeyValue>[0],
                                                             scalars_of_shape<AttentionGradKeyValue>[1]};

template <class Op>
std::vector<Op> attention_grad_samples() {
  std::vector<Op> all;
  for (const AttentionShape& shape : AttentionShape::shapes())
    for (std::int64_t accumulate : {1, 0}) {
      Op& op = all.emplace_back();
      op.shape = shape;
      op.accumulate = accumulate;
    }
  return all;
}
inline std::vector<AttentionGrad> AttentionGrad::samples() { return attention_grad_samples<AttentionGrad>(); }
inline std::vector<AttentionGradQuery> AttentionGradQuery::samples() {
  return attention_grad_samples<AttentionGradQuery>();
}
inline std::vector<AttentionGradKeyValue> AttentionGradKeyValue::samples() {
  return attention_grad_samples<AttentionGradKeyValue>();
}

}  // namespace tegula
