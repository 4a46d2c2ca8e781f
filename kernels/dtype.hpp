// Element types of tiles and the conversions between them. f16 and i64 join when an op needs them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string_view>
#include <type_traits>

// Functions that g++ and nvcc both compile: the functors of pointwise ops and what they call. They are
// forced inline because a call would keep g++ from vectorising the loop around them.
#ifdef __CUDACC__
#define TEGULA_FN __host__ __device__ __forceinline__
#else
#define TEGULA_FN inline __attribute__((always_inline))
#endif

namespace tegula {

namespace detail {
template <class To, class From>
TEGULA_FN To bit_cast(From from) {  // std::bit_cast is not callable from CUDA device code
  return __builtin_bit_cast(To, from);
}
}  // namespace detail

// bfloat16: the upper half of a float. Conversion rounds to nearest even and keeps NaN a NaN.
struct bf16 {
  std::uint16_t bits = 0;

  bf16() = default;
  TEGULA_FN bf16(float value) {  // NOLINT(google-explicit-constructor): a number, not a resource
    auto u = detail::bit_cast<std::uint32_t>(value);
    bool nan = (u & 0x7fffffffu) > 0x7f800000u;
    std::uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    bits = static_cast<std::uint16_t>(nan ? (u >> 16) | 0x40u : rounded);
  }
  TEGULA_FN operator float() const {  // NOLINT(google-explicit-constructor)
    return detail::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
};

enum class DType : std::uint8_t { f32, f64, bf16, i32, u8 };
inline constexpr DType f32 = DType::f32, f64 = DType::f64, i32 = DType::i32, u8 = DType::u8;

template <class T>
inline constexpr DType dtype_of = [] {
  if constexpr (std::is_same_v<T, float>)
    return DType::f32;
  else if constexpr (std::is_same_v<T, double>)
    return DType::f64;
  else if constexpr (std::is_same_v<T, bf16>)
    return DType::bf16;
  else if constexpr (std::is_same_v<T, std::int32_t>)
    return DType::i32;
  else {
    static_assert(std::is_same_v<T, std::uint8_t>, "not an element type of tiles");
    return DType::u8;
  }
}();

// Type in which a kernel computes on elements of type T: f64 in double, f32 and bf16 in float.
template <class T>
using Compute = std::conditional_t<std::is_same_v<T, double>, double, float>;

// x as an element of type T. (bf16(x) written in a simd loop is a temporary whose address is taken: no vector code.)
template <class T>
TEGULA_FN T round_to(Compute<T> x) {
  return static_cast<T>(x);
}

template <class... T>
struct Types {};
using RealTypes = Types<float, double, bf16>;

// Calls f.template operator()<T>() for the C++ type of `dtype`.
template <class F>
decltype(auto) visit_dtype(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32:
      return f.template operator()<float>();
    case DType::f64:
      return f.template operator()<double>();
    case DType::bf16:
      return f.template operator()<bf16>();
    case DType::i32:
      return f.template operator()<std::int32_t>();
    case DType::u8:
      return f.template operator()<std::uint8_t>();
  }
  throw std::logic_error("visit_dtype: not a dtype");
}

constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::bf16:
      return 2;
    case DType::u8:
      return 1;
  }
  return 0;
}

constexpr std::string_view name_of(DType dtype) {
  constexpr std::string_view names[] = {"f32", "f64", "bf16", "i32", "u8"};
  return names[static_cast<int>(dtype)];
}

}  // namespace tegula
