#include "kernels/attention.hpp"

#include <optional>

#include "kernels/blas.hpp"
#include "kernels/simd.hpp"

namespace tegula {

namespace {

using Shape = AttentionShape;

template <class C, class T>
TEGULA_CLONES void convert(std::int64_t rows, int dim, const C* from, std::int64_t from_ld, T* to,
                           std::int64_t to_ld) {
  for (std::int64_t r = 0; r < rows; ++r, from += from_ld, to += to_ld) {
#pragma GCC ivdep
    for (int d = 0; d < dim; ++d) to[d] = round_to<T>(from[d]);
  }
}

// A matrix of `dim` columns inside a tile, as the type to compute in: in place where it has it, else a copy in `wide`.
template <class C, class T>
struct Matrix {
  C* data;
  std::int64_t ld;

  Matrix(T* tile, std::int64_t tile_ld, std::int64_t rows, int dim, std::remove_const_t<C>* wide,
         bool load = true)
      : tile_(tile), tile_ld_(tile_ld), rows_(rows), dim_(dim) {
    if constexpr (std::is_same_v<std::remove_const_t<T>, std::remove_const_t<C>>) {
      data = tile, ld = tile_ld;
    } else {
      data = wide, ld = dim;
      if (load) convert(rows, dim, tile, tile_ld, wide, dim);
    }
  }
  void zero() const {
    for (std::int64_t r = 0; r < rows_; ++r) std::fill_n(data + r * ld, dim_, C(0));
  }
  void store() const {
    if constexpr (!std::is_same_v<T, C>) convert(rows_, dim_, data, ld, tile_, tile_ld_);
  }

 private:
  T* tile_;
  std::int64_t tile_ld_, rows_;
  int dim_;
};

template <class C, class T>
using Input = Matrix<C, const T>;

// Scratch memory, given out piece by piece.
template <class C>
struct Pool {
  C* next;
  template <class T>
  explicit Pool(T* work) : next(reinterpret_cast<C*>(work)) {
    // Scratch of bf16 may begin at any even address.
    if constexpr (!std::is_same_v<T, C>)
      next = reinterpret_cast<C*>((reinterpret_cast<std::uintptr_t>(work) + alignof(C) - 1) / alignof(C) *
                                  alignof(C));
  }
  C* take(std::int64_t n) {
    C* piece = next;
    next += n;
    return piece;
  }
};

// One block of queries of one head.
struct Block {
  int b, h, g, begin, rows, columns;
};

// Calls head(b, h), then block(...) for each block of queries of that head, then after(b, h).
template <class Head, class Each, class After>
void for_each_block(const Shape& s, Head&& head, Each&& each, After&& after) {
  for (int b = 0; b < s.batch; ++b)
    for (int h = 0; h < s.heads; ++h) {
      head(b, h);
      for (int g = 0; g < s.groups; ++g)
        for (int begin = 0; begin < s.queries; begin += Shape::block) {
          const int rows = std::min(Shape::block, s.queries - begin);
          each(Block{b, h, g, begin, rows, s.visible(begin + rows - 1)});
        }
      after(b, h);
    }
}

// Scores become probabilities, in rows that see fewer keys than `columns` followed by zeros. lse is brought up to date;
// shrink[r] is what the y of earlier keys has to be multiplied by.
template <class C>
TEGULA_CLONES void to_probabilities(const Shape& s, const Block& block, bool accumulate, C* p, double* lse,
                                    C* shrink) {
  const std::int64_t lse_ld = std::int64_t{s.heads} * s.groups;
  for (int r = 0; r < block.rows; ++r, p += block.columns, lse += lse_ld) {
    const int seen = s.visible(block.begin + r);
    const C before = accumulate ? static_cast<C>(*lse) : -std::numeric_limits<C>::infinity();
    shrink[r] = accumulate ? 1 : 0;
    std::fill_n(p + seen, block.columns - seen, C(0));
    if (seen == 0) {
      if (!accumulate) *lse = before;
      continue;
    }
    const C most = max_of<C>(p, seen);
#pragma GCC ivdep
    for (int j = 0; j < seen; ++j) p[j] = exp_or_zero(p[j] - most);
    const C sum = sum_of<C>(p, seen);
    C scale = 1 / sum;
    C now = most + math::log(sum);
    if (before > -std::numeric_limits<C>::infinity()) {
      const C larger = before > now ? before : now;
      now = larger + math::log(math::exp(before - larger) + math::exp(now - larger));
      shrink[r] = math::exp(before - now);
      scale = math::exp(most - now);
    }
    *lse = static_cast<double>(now);
#pragma GCC ivdep
    for (int j = 0; j < seen; ++j) p[j] *= scale;
  }
}

template <class C>
void drop(const Shape& s, const Block& block, C* p) {
  for (int r = 0; r < block.rows; ++r, p += block.columns)
    for (int j = 0; j < s.visible(block.begin + r); ++j)
      p[j] *= s.kept<C>(block.b, block.h, block.g, block.begin + r, j);
}

// From scores and dp = dy v^T: p = drop(probabilities), dp = the gradient by the products <q, k>.
template <class C>
TEGULA_CLONES void to_score_gradients(const Shape& s, const Block& block, const double* lse, const C* dy,
                                      const C* y, std::int64_t dy_ld, std::int64_t y_ld, C* p, C* dp) {
  const std::int64_t lse_ld = std::int64_t{s.heads} * s.groups;
  const C scale = static_cast<C>(s.scale);
  for (int r = 0; r < block.rows; ++r, p += block.columns, dp += block.columns) {
    const int seen = s.visible(block.begin + r);
    const C shift = static_cast<C>(lse[r * lse_ld]);
    const C *row_dy = dy + r * dy_ld, *row_y = y + r * y_ld;
    const C along_y = fold(
        s.dim, C(0), C(0), [=](std::int64_t d) TEGULA_INLINE { return row_dy[d] * row_y[d]; },
        [](C value) TEGULA_INLINE { return value; }, Plus{});
    if (s.dropout == 0) {
#pragma GCC ivdep
      for (int j = 0; j < seen; ++j) {
        p[j] = exp_or_zero(p[j] - shift);
        dp[j] = scale * p[j] * (dp[j] - along_y);
      }
    } else {
      for (int j = 0; j < seen; ++j) {
        const C keep = s.kept<C>(block.b, block.h, block.g, block.begin + r, j),
                all = exp_or_zero(p[j] - shift);
        p[j] = all * keep;
        dp[j] = scale * all * (dp[j] * keep - along_y);
      }
    }
    std::fill_n(p + seen, block.columns - seen, C(0));
    std::fill_n(dp + seen, block.columns - seen, C(0));
  }
}

template <class C>
TEGULA_CLONES void scale_rows(int rows, int dim, const C* factor, C* y, std::int64_t ld) {
  for (int r = 0; r < rows; ++r, y += ld) {
#pragma GCC ivdep
    for (int d = 0; d < dim; ++d) y[d] *= factor[r];
  }
}

template <class T>
void forward(const Shape& s, bool accumulate, const T* q, const T* k, const T* v, T* y, double* lse,
             T* work) {
  using C = Compute<T>;
  Pool<C> pool(work);
  const std::int64_t rows = std::min(Shape::block, s.queries),
                     q_ld = std::int64_t{s.heads} * s.groups * s.dim, k_ld = std::int64_t{s.heads} * s.dim;
  C *p = pool.take(rows * s.keys), *wide[4] = {};
  if constexpr (!std::is_same_v<T, C>)
    for (int i = 0; i < 4; ++i) wide[i] = pool.take((i < 2 ? s.keys : rows) * std::int64_t{s.dim});
  const T *tile_k = nullptr, *tile_v = nullptr;
  std::optional<Input<const C, T>> keys, values;
  for_each_block(
      s,
      [&](int b, int h) {
        tile_k = k + s.key_row(b, 0, h) * s.dim, tile_v = v + s.key_row(b, 0, h) * s.dim;
        keys.emplace(tile_k, k_ld, s.keys, s.dim, wide[0]);
        values.emplace(tile_v, k_ld, s.keys, s.dim, wide[1]);
      },
      [&](const Block& block) {
        const std::int64_t first = s.query_row(block.b, block.begin, block.h, block.g);
        const Input<const C, T> queries(q + first * s.dim, q_ld, block.rows, s.dim, wide[2]);
        const Matrix<C, T> out(y + first * s.dim, q_ld, block.rows, s.dim, wide[3], accumulate);
        C shrink[Shape::block];
        matrix_product(false, true, block.rows, block.columns, s.dim, static_cast<C>(s.scale), queries.data,
                       queries.ld, keys->data, keys->ld, C(0), p, block.columns);
        to_probabilities(s, block, accumulate, p, lse + first, shrink);
        if (s.dropout != 0) drop(s, block, p);
        if (accumulate) scale_rows(block.rows, s.dim, shrink, out.data, out.ld);
        matrix_product(false, false, block.rows, s.dim, block.columns, C(1), p, block.columns, values->data,
                       values->ld, C(accumulate ? 1 : 0), out.data, out.ld);
        out.store();
      },
      [](int, int) {});
}

// Null pointers: gradients that are not wanted.
template <class T>
void backward(const Shape& s, bool accumulate, const T* q, const T* k, const T* v, const T* y, const T* dy,
              const double* lse, T* dq, T* dk, T* dv, T* work) {
  using C = Compute<T>;
  Pool<C> pool(work);
  const std::int64_t rows = std::min(Shape::block, s.queries),
                     q_ld = std::int64_t{s.heads} * s.groups * s.dim, k_ld = std::int64_t{s.heads} * s.dim;
  C *p = pool.take(rows * s.keys), *dp = pool.take(rows * s.keys), *wide[8] = {};
  if constexpr (!std::is_same_v<T, C>)
    for (int i = 0; i < 8; ++i) wide[i] = pool.take((i < 4 ? s.keys : rows) * std::int64_t{s.dim});
  std::optional<Input<const C, T>> keys, values;
  std::optional<Matrix<C, T>> key_gradients, value_gradients;
  for_each_block(
      s,
      [&](int b, int h) {
        const std::int64_t first = s.key_row(b, 0, h) * s.dim;
        keys.emplace(k + first, k_ld, s.keys, s.dim, wide[0]);
        values.emplace(v + first, k_ld, s.keys, s.dim, wide[1]);
        if (!dk) return;
        key_gradients.emplace(dk + first, k_ld, s.keys, s.dim, wide[2], accumulate);
        value_gradients.emplace(dv + first, k_ld, s.keys, s.dim, wide[3], accumulate);
        if (accumulate) return;
        key_gradients->zero();
        value_gradients->zero();
      },
      [&](const Block& block) {
        const std::int64_t first = s.query_row(block.b, block.begin, block.h, block.g), place = first * s.dim;
        const Input<const C, T> queries(q + place, q_ld, block.rows, s.dim, wide[4]);
        const Input<const C, T> outputs(y + place, q_ld, block.rows, s.dim, wide[5]);
        const Input<const C, T> gradients(dy + place, q_ld, block.rows, s.dim, wide[6]);
        matrix_product(false, true, block.rows, block.columns, s.dim, C(s.scale), queries.data, queries.ld,
                       keys->data, keys->ld, C(0), p, block.columns);
        matrix_product(false, true, block.rows, block.columns, s.dim, C(1), gradients.data, gradients.ld,
                       values->data, values->ld, C(0), dp, block.columns);
        to_score_gradients(s, block, lse + first, gradients.data, outputs.data, gradients.ld, outputs.ld, p,
                           dp);
        if (dq) {
          const Matrix<C, T> query_gradients(dq + place, q_ld, block.rows, s.dim, wide[7], accumulate);
          matrix_product(false, false, block.rows, s.dim, block.columns, C(1), dp, block.columns, keys->data,
                         keys->ld, C(accumulate ? 1 : 0), query_gradients.data, query_gradients.ld);
          query_gradients.store();
        }
        if (!dk) return;
        matrix_product(true, false, block.columns, s.dim, block.rows, C(1), dp, block.columns, queries.data,
                       queries.ld, C(1), key_gradients->data, key_gradients->ld);
        matrix_product(true, false, block.columns, s.dim, block.rows, C(1), p, block.columns, gradients.data,
                       gradients.ld, C(1), value_gradients->data, value_gradients->ld);
      },
      [&](int, int) {
        if (!dk) return;
        key_gradients->store();
        value_gradients->store();
      });
}

}  // namespace

template <class T>
void Attention::cpu(In<T> q, In<T> k, In<T> v, Acc<T> y, Acc<double> lse, Scratch<T> work) const {
  forward<T>(shape, accumulate, q, k, v, y, lse, work);
}

template <class T>
void AttentionGrad::cpu(In<T> q, In<T> k, In<T> v, In<T> y, In<T> dy, In<double> lse, Acc<T> dq, Acc<T> dk,
                        Acc<T> dv, Scratch<T> work) const {
  backward<T>(shape, accumulate, q, k, v, y, dy, lse, dq, dk, dv, work);
}

template <class T>
void AttentionGradQuery::cpu(In<T> q, In<T> k, In<T> v, In<T> y, In<T> dy, In<double> lse, Acc<T> dq,
                             Scratch<T> work) const {
  backward<T>(shape, accumulate, q, k, v, y, dy, lse, dq, nullptr, nullptr, work);
}

template <class T>
void AttentionGradKeyValue::cpu(In<T> q, In<T> k, In<T> v, In<T> y, In<T> dy, In<double> lse, Acc<T> dk,
                                Acc<T> dv, Scratch<T> work) const {
  backward<T>(shape, accumulate, q, k, v, y, dy, lse, nullptr, dk, dv, work);
}

const Register<Attention> registered_attention;
const Register<AttentionGrad> registered_attention_grad;
const Register<AttentionGradQuery> registered_attention_grad_query;
const Register<AttentionGradKeyValue> registered_attention_grad_key_value;

}  // namespace tegula
