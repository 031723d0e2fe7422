// Single numbers on every backend: storage types, conversions, e^x.
#pragma once

#include <cstdint>

#include "group.h"

namespace dflash2 {

// Storage types: 16-bit floats are kept as bits, arithmetic is always float.
struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

DFLASH2_INLINE float float_of_bits(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof(x));
  return x;
}

DFLASH2_INLINE uint32_t bits_of_float(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof(bits));
  return bits;
}

DFLASH2_INLINE float half_to_float(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 0x1fu;
  const uint32_t mantissa = h & 0x3ffu;
  uint32_t bits;
  if (exponent == 0x1fu) {
    bits = sign | 0x7f800000u | (mantissa << 13);
  } else if (exponent == 0) {  // zero or subnormal: the value is mantissa * 2^-24
    const float magnitude = float(mantissa) * 5.9604644775390625e-8f;
    bits = bits_of_float(magnitude);
    bits |= sign;
  } else {
    bits = sign | ((exponent + 112u) << 23) | (mantissa << 13);
  }
  return float_of_bits(bits);
}

DFLASH2_INLINE uint16_t float_to_half(float x) {
  uint32_t bits = bits_of_float(x);
  const uint16_t sign = (bits >> 16) & 0x8000u;
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) return sign | 0x7e00u;   // NaN
  if (bits >= 0x477ff000u) return sign | 0x7c00u;  // rounds to infinity
  if (bits < 0x38800000u) {                        // subnormal half: let a float add round it
    // The ulp of [0.5, 1) is 2^-24, the unit of subnormal halves.
    return sign | uint16_t(bits_of_float(float_of_bits(bits) + 0.5f) - 0x3f000000u);
  }
  bits += 0xfffu + ((bits >> 13) & 1);
  return sign | uint16_t((bits - 0x38000000u) >> 13);
}

DFLASH2_INLINE float to_float(float x) { return x; }
DFLASH2_INLINE float to_float(BFloat16 x) { return float_of_bits(uint32_t(x.bits) << 16); }
DFLASH2_INLINE float to_float(Float16 x) { return half_to_float(x.bits); }

DFLASH2_INLINE void assign(float* p, float x) { *p = x; }
DFLASH2_INLINE void assign(Float16* p, float x) { p->bits = float_to_half(x); }
DFLASH2_INLINE void assign(BFloat16* p, float x) {
  const uint32_t bits = bits_of_float(x);
  // Round to nearest, ties to even; a NaN must not be rounded up into an infinity.
  const uint32_t rounded = x == x ? bits + 0x7fff + ((bits >> 16) & 1) : bits | 0x400000;
  p->bits = uint16_t(rounded >> 16);
}

// How an algorithm walks along a row: one element at a time. simd.h has a wider one for the CPU.
struct Lanes1 {
  using Pack = float;
  static constexpr int kWidth = 1;
  template <typename T>
  DFLASH2_INLINE static float load(const T* p) {
    return to_float(*p);
  }
  template <typename T>
  DFLASH2_INLINE static void store(T* p, float x) {
    assign(p, x);
  }
  DFLASH2_INLINE static float sum(float x) { return x; }
};

// e^x for x <= 0 to about one unit in the last place, the smallest normal number below -87. The
// same arithmetic as in simd.h; without branches, so that loops around it become vector code.
DFLASH2_INLINE float exp_of_negative(float x) {
  x = x > -87.0f ? x : -87.0f;
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to the nearest integer
  const float shifted = x * 1.44269504088896341f + magic;
  const float n = shifted - magic;
  const float r = x - n * 0.693359375f + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  return float_of_bits(bits_of_float(p) + ((bits_of_float(shifted) - bits_of_float(magic)) << 23));
}

}  // namespace dflash2
