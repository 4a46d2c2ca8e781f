// f16 against its definition in exact arithmetic.
#include "kernels/dtype.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>

using namespace tegula;

namespace {

// IEEE 754 binary16: sign, 5 bits of exponent, biased by 15, 10 of fraction.
double value_of(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double magnitude = exponent == 31  ? fraction == 0 ? HUGE_VAL : std::nan("")
                            : exponent == 0 ? std::ldexp(fraction, -24)
                                           : std::ldexp(1024 + fraction, exponent - 25);
  return bits & 0x8000 ? -magnitude : magnitude;
}

double rounded(float x) {  // to nearest, ties to even, by the default rounding of nearbyint
  int exponent = 0;
  std::frexp(x, &exponent);  // |x| in [0.5, 1) 2^exponent
  const double step = std::ldexp(1, std::max(exponent, -13) - 11);
  const double y = std::nearbyint(double{x} / step) * step;
  return std::abs(y) > 65504 ? std::copysign(HUGE_VAL, y) : y;
}

}  // namespace

TEST_SUITE("kernels") {
  TEST_CASE("every f16 has its value, and comes back from it") {
    int wrong = 0;
    for (int bits = 0; bits < 65536; ++bits) {
      f16 x;
      x.bits = static_cast<std::uint16_t>(bits);
      const double expected = value_of(x.bits);
      const auto value = static_cast<float>(x);
      wrong += std::isnan(expected) ? !std::isnan(value) || !std::isnan(static_cast<float>(f16(value)))
                                    : value != expected || f16(value).bits != x.bits;
    }
    CHECK(wrong == 0);
  }

  TEST_CASE("floats become the nearest f16, ties to even, through subnormals and overflow") {
    int wrong = 0;
    for (std::uint64_t u = 0; u < 0xff800001u; u += u % 0x7f800001u < 0x33000000u ? 99991 : 997) {
      const auto x = detail::bit_cast<float>(static_cast<std::uint32_t>(u));
      if (std::isnan(x)) continue;
      const f16 y(x);
      wrong += std::isinf(x) ? static_cast<float>(y) != x
                             : value_of(y.bits) != rounded(x) || (y.bits >> 15 != 0) != std::signbit(x);
    }
    CHECK(wrong == 0);
    for (std::uint16_t bits = 0; bits < 0x7c00; ++bits) {  // halfway to the next one, and beside it
      const double here = value_of(bits), next = bits == 0x7bff ? 65536 : value_of(bits + 1);
      const auto half = static_cast<float>((here + next) / 2);
      wrong += f16(half).bits != bits + bits % 2;
      wrong += f16(std::nextafter(half, 0.0f)).bits != bits;
      wrong += f16(std::nextafter(half, 1e6f)).bits != bits + 1;
    }
    CHECK(wrong == 0);
  }
}
