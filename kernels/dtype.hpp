// Element types of tiles and the conversions between them. i64 joins when an op needs it.
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

// IEEE 754 half precision: 5 bits of exponent, 10 of fraction. Conversion rounds to nearest even, through subnormals, and
// keeps NaN a NaN. Integer operations and selections only, so that loops over it are vector code on every processor.
struct f16 {
  std::uint16_t bits = 0;

  f16() = default;
  TEGULA_FN f16(float value) {  // NOLINT(google-explicit-constructor): a number, not a resource
    const auto all = detail::bit_cast<std::uint32_t>(value);
    const std::uint32_t u = all & 0x7fffffffu;
    // A float of exponent -1 has its last bit at 2^-24, f16's smallest step: adding 0.5 rounds to that.
    const std::uint32_t small =
        detail::bit_cast<std::uint32_t>(detail::bit_cast<float>(u) + 0.5f) - 0x3f000000u;
    const std::uint32_t normal =
        (u - 0x38000000u + 0xfffu + ((u >> 13) & 1u)) >> 13;  // exponent 127 becomes 15
    const std::uint32_t large = u > 0x7f800000u ? 0x7e00u : 0x7c00u;
    const std::uint32_t rounded = u < 0x38800000u ? small : u < 0x477ff000u ? normal : large;
    bits = static_cast<std::uint16_t>(rounded | (all >> 16 & 0x8000u));
  }
  TEGULA_FN operator float() const {  // NOLINT(google-explicit-constructor)
    const std::uint32_t u = bits & 0x7fffu, sign = (bits & 0x8000u) << 16;
    const std::uint32_t normal = (u << 13) + 0x38000000u;
    const auto small =
        detail::bit_cast<std::uint32_t>(static_cast<float>(static_cast<std::int32_t>(u)) * 0x1p-24f);
    const std::uint32_t large = (u << 13) | 0x7f800000u;
    return detail::bit_cast<float>(sign | (u < 0x400u ? small : u < 0x7c00u ? normal : large));
  }
};

enum class DType : std::uint8_t { f32, f64, bf16, f16, i32, u8 };
inline constexpr DType f32 = DType::f32, f64 = DType::f64, i32 = DType::i32, u8 = DType::u8;

template <class T>
inline constexpr DType dtype_of = [] {
  if constexpr (std::is_same_v<T, float>)
    return DType::f32;
  else if constexpr (std::is_same_v<T, double>)
    return DType::f64;
  else if constexpr (std::is_same_v<T, bf16>)
    return DType::bf16;
  else if constexpr (std::is_same_v<T, f16>)
    return DType::f16;
  else if constexpr (std::is_same_v<T, std::int32_t>)
    return DType::i32;
  else {
    static_assert(std::is_same_v<T, std::uint8_t>, "not an element type of tiles");
    return DType::u8;
  }
}();

// Type in which a kernel computes on elements of type T: f64 in double, the others in float.
template <class T>
using Compute = std::conditional_t<std::is_same_v<T, double>, double, float>;

// x as an element of type T. (bf16(x) written in a simd loop is a temporary whose address is taken: no vector code.)
template <class T>
TEGULA_FN T round_to(Compute<T> x) {
  return static_cast<T>(x);
}

template <class... T>
struct Types {};
using RealTypes = Types<float, double, bf16, f16>;

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
    case DType::f16:
      return f.template operator()<f16>();
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
    case DType::f16:
      return 2;
    case DType::u8:
      return 1;
  }
  return 0;
}

// Whether elements are kept in less than they are computed in: kernels need scratch where others work in place.
constexpr bool is_half(DType dtype) { return dtype == DType::bf16 || dtype == DType::f16; }

constexpr std::string_view name_of(DType dtype) {
  constexpr std::string_view names[] = {"f32", "f64", "bf16", "f16", "i32", "u8"};
  return names[static_cast<int>(dtype)];
}

}  // namespace tegula
