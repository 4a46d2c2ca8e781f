// One task for the tests: an op's attributes with operands in guarded memory.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/op.hpp"

namespace tegula::test {

inline double load(DType dtype, const std::byte* at) {
  return visit_dtype(dtype, [&]<class T>() {
    T x;
    std::memcpy(&x, at, sizeof x);
    return static_cast<double>(x);
  });
}

inline void store(DType dtype, std::byte* at, double value) {
  visit_dtype(dtype, [&]<class T>() {
    const auto x = static_cast<T>(value);
    std::memcpy(at, &x, sizeof x);
  });
}

// n elements between two guard zones that nobody may write, starting `shift` elements after a multiple of 64
// bytes.
class Operand {
 public:
  Operand(DType dtype, std::int64_t n, int shift)
      : dtype_(dtype), n_(n), memory_(guard + (n + shift) * size_of(dtype) + guard + 64, zone) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    begin_ = guard + (64 - address % 64) % 64 + shift * size_of(dtype);
  }
  DType dtype() const { return dtype_; }
  std::int64_t size() const { return n_; }
  std::size_t bytes() const { return n_ * size_of(dtype_); }
  std::byte* data() { return memory_.data() + begin_; }
  const std::byte* data() const { return memory_.data() + begin_; }
  double get(std::int64_t i) const { return load(dtype_, data() + i * size_of(dtype_)); }
  void set(std::int64_t i, double value) { store(dtype_, data() + i * size_of(dtype_), value); }
  void poison() { std::memset(data(), 0xff, bytes()); }  // NaN, in any float type
  bool same_bits(const Operand& other) const { return std::memcmp(data(), other.data(), bytes()) == 0; }
  bool guards_intact() const {
    auto intact = [](std::byte b) { return b == zone; };
    return std::all_of(memory_.begin(), memory_.begin() + begin_, intact) &&
           std::all_of(memory_.begin() + begin_ + bytes(), memory_.end(), intact);
  }

 private:
  static constexpr std::size_t guard = 256;
  static constexpr std::byte zone{0x5a};
  DType dtype_;
  std::int64_t n_;
  std::size_t begin_;
  std::vector<std::byte> memory_;
};

struct Task {
  const OpInfo& op;
  std::vector<std::byte> attributes;
  DType dtype;
  std::vector<Operand> operands;  // of no elements where absent

  // Operands hold op.sample() of pseudo-random numbers rounded to `rounded_to`, whatever type they are stored
  // in; what will be overwritten holds NaN.
  Task(const OpInfo& of, std::vector<std::byte> with, DType run_for, DType rounded_to, int shift = 0)
      : op(of), attributes(std::move(with)), dtype(run_for) {
    for (int k = 0; k < count(); ++k) {
      const std::int64_t n = has(k) ? op.extent(attributes.data(), k, dtype) : 0;
      Operand& x = operands.emplace_back(op.dtype(k, dtype), n, shift);
      x.poison();
      if (!reads(k)) continue;
      std::vector<std::byte> rounded(8);
      for (std::int64_t i = 0; i < n; ++i) {
        store(op.dtype(k, rounded_to), rounded.data(), op.sample(attributes.data(), k, pseudo_random(k, i)));
        x.set(i, load(op.dtype(k, rounded_to), rounded.data()));
      }
    }
  }

  int count() const { return static_cast<int>(op.operands.size()); }
  bool has(int k) const { return op.has(attributes.data(), k); }
  Access access(int k) const { return op.access(attributes.data(), k); }
  bool reads(int k) const { return access(k) == Access::read || access(k) == Access::read_write; }
  bool writes(int k) const { return access(k) == Access::write || access(k) == Access::read_write; }

  std::vector<void*> tiles() {
    std::vector<void*> pointers;
    for (int k = 0; k < count(); ++k) pointers.push_back(has(k) ? operands[k].data() : nullptr);
    return pointers;
  }
  void run_cpu() { op.cpu(attributes.data(), tiles().data(), dtype); }
  void run_reference() { op.reference(attributes.data(), tiles().data()); }  // of a task for f64

  static double pseudo_random(std::uint64_t k, std::uint64_t i) {  // in [0, 1); SplitMix64 of (k, i)
    std::uint64_t z = (k << 32) + i * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return static_cast<double>((z ^ z >> 31) >> 11) * 0x1p-53;
  }
};

inline double epsilon(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 0x1p-52;
    case DType::f32:
      return 0x1p-23;
    case DType::bf16:
      return 0x1p-7;
    case DType::f16:
      return 0x1p-10;
    default:
      return 0;
  }
}

// What is wrong with `x`, an output of a task run for x's type, if `exact` is what it should be: empty if
// nothing. An error may be `ulps` of the type computed in, of the element or of the root mean square of all,
// plus the rounding to bf16 or f16. `run_for` is the type that the task was run for: x may be of a wider, fixed one.
inline std::string difference(const Operand& x, const Operand& exact, double ulps, DType run_for) {
  double squares = 0;
  std::int64_t finite = 0;
  for (std::int64_t i = 0; i < exact.size(); ++i)
    if (const double e = exact.get(i); std::isfinite(e)) squares += e * e, ++finite;
  const double scale = finite > 0 ? std::sqrt(squares / static_cast<double>(finite)) : 0;
  const double computed = epsilon(run_for == f64 && x.dtype() == f64 ? f64 : f32);
  const double rounding = is_half(x.dtype()) ? epsilon(x.dtype()) : 0;
  const double smallest = x.dtype() == DType::f16 ? 0x1p-24 : 0;  // a step of subnormal numbers
  for (std::int64_t i = 0; i < exact.size(); ++i) {
    const double a = x.get(i), e = exact.get(i);
    if (a == e || (std::isnan(a) && std::isnan(e))) continue;
    std::byte narrow[8];
    store(x.dtype(), narrow, e);
    if (a == load(x.dtype(), narrow)) continue;  // beyond f16's range
    const double allowed =
        ulps * computed * (std::abs(e) + scale) + std::max(rounding * std::abs(e), smallest);
    if (std::isfinite(e) && std::abs(a - e) <= allowed) continue;
    char text[200];
    std::snprintf(text, sizeof text, "element %ld of %ld is %.9g, not %.9g; the error is %.3g, allowed %.3g",
                  long(i), long(exact.size()), a, e, std::abs(a - e), allowed);
    return text;
  }
  return "";
}

}  // namespace tegula::test
