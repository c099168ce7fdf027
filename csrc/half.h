// Sixteen-bit floats in plain C++, bit for bit what the conversion instructions do.
#pragma once
#include <cstdint>
#include <cstring>

namespace headstart {

inline float bits_to_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
inline uint32_t float_to_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}

inline float bf16_to_float(uint16_t h) { return bits_to_float(static_cast<uint32_t>(h) << 16); }

inline float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16, exponent = (h >> 10) & 31, fraction = h & 1023;
  if (exponent == 31) return bits_to_float(sign | 0x7f800000 | (fraction ? 0x400000 : 0) | fraction << 13);
  if (exponent) return bits_to_float(sign | (exponent + 112) << 23 | fraction << 13);
  const float tiny = static_cast<float>(fraction) * 5.9604644775390625e-8f;  // 2^-24
  return sign ? -tiny : tiny;
}

inline uint16_t float_to_half(float x) {  // to nearest, ties to even
  const uint32_t bits = float_to_bits(x), sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00 | ((magnitude >> 13) & 0x3ff));
  if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);
  if (magnitude < 0x38800000) {  // subnormal or zero: let the adder round to a multiple of 2^-24
    const float shifted = bits_to_float(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (float_to_bits(shifted) - 0x3f000000));
  }
  const uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
  return static_cast<uint16_t>(sign | (rounded - 0x38000000) >> 13);
}

}  // namespace headstart
