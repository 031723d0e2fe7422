// Vectors of 16 floats through the compiler's vector extension, so that one source serves AVX-512,
// AVX2 and plain targets; the compiler splits a vector where registers are narrower.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

#if defined(__F16C__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "scalar.h"

namespace dflash2 {

constexpr int kLanes = 16;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

typedef float Vec __attribute__((vector_size(64), aligned(64)));
typedef int32_t VecI __attribute__((vector_size(64), aligned(64)));
typedef uint16_t VecU16 __attribute__((vector_size(32), aligned(32)));

inline Vec splat(float x) { return Vec{} + x; }

inline Vec load(const float* p) {
  Vec v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

// The bits of 16 numbers in the lower halves of their lanes.
inline VecI load_bits(const BFloat16* p) {
  VecU16 raw;
  std::memcpy(&raw, p, sizeof(raw));
  return __builtin_convertvector(raw, VecI);
}

inline Vec load(const BFloat16* p) { return (Vec)(load_bits(p) << 16); }

inline Vec load(const Float16* p) {
#if defined(__AVX512F__)
  return (Vec)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(__F16C__)
  alignas(64) float out[kLanes];
  for (int half = 0; half < 2; ++half) {
    const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p) + half);
    _mm256_store_ps(out + 8 * half, _mm256_cvtph_ps(raw));
  }
  return load(out);
#else
  alignas(64) float out[kLanes];
  for (int i = 0; i < kLanes; ++i) out[i] = half_to_float(p[i].bits);
  return load(out);
#endif
}

inline void store(float* p, Vec v) { std::memcpy(p, &v, sizeof(v)); }

inline void store(BFloat16* p, Vec v) {
  const VecI bits = (VecI)v;
  // Round to nearest, ties to even; a NaN must not be rounded up into an infinity.
  const VecI rounded = bits + 0x7fff + ((bits >> 16) & 1);
  const VecI chosen = (v == v) ? rounded : (bits | 0x400000);
  const VecU16 out = __builtin_convertvector(chosen >> 16, VecU16);
  std::memcpy(p, &out, sizeof(out));
}

inline void store(Float16* p, Vec v) {
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT));
#else
  for (int i = 0; i < kLanes; ++i) p[i].bits = float_to_half(v[i]);
#endif
}

// The first `count` (<= 16) elements; the other lanes are zero.
template <typename T>
inline Vec load_partial(const T* p, int count) {
  T padded[kLanes] = {};
  std::memcpy(padded, p, count * sizeof(T));
  return load(padded);
}

// 32 elements as two vectors, in an order that is the cheapest for the type and the same for every
// load of that type: enough for sums over all of them.
constexpr int kPair = 2 * kLanes;
struct VecPair {
  Vec first, second;
};

template <typename T>
inline VecPair load_pair(const T* p) {
  return {load(p), load(p + kLanes)};
}

inline VecPair load_pair(const BFloat16* p) {
  VecI raw;  // each lane holds two numbers; the upper half of a float is a bfloat16
  std::memcpy(&raw, p, sizeof(raw));
  return {(Vec)(raw << 16), (Vec)(raw & int32_t(0xffff0000))};
}

// The first `count` (<= 32) elements, zeros behind them.
template <typename T>
inline VecPair load_pair_partial(const T* p, int count) {
  T padded[kPair] = {};
  std::memcpy(padded, p, count * sizeof(T));
  return load_pair(padded);
}

template <typename T>
inline void store_partial(T* p, Vec v, int count) {
  T padded[kLanes];
  store(padded, v);
  std::memcpy(p, padded, count * sizeof(T));
}

inline Vec max(Vec a, Vec b) { return a > b ? a : b; }

inline float reduce_max(Vec v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)v);
#else
  float out = v[0];
  for (int i = 1; i < kLanes; ++i) out = v[i] > out ? v[i] : out;
  return out;
#endif
}

// Pairwise, in an order that depends on nothing but the lane.
inline float reduce_add(Vec v) {
  alignas(64) float lanes[kLanes];
  store(lanes, v);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

// e^x (x <= 88) to about one unit in the last place. exp(0) is exactly 1 and everything below -87,
// minus infinity included, is exactly 0: the attention's bit-for-bit guarantees rest on both.
inline Vec exp(Vec x) {
  const Vec lowest = splat(-87.0f);
  const Vec clamped = max(x, lowest);
  const Vec magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to the nearest integer
  const Vec shifted = clamped * 1.44269504088896341f + magic;
  const Vec n = shifted - magic;
  Vec r = clamped - n * 0.693359375f;  // ln 2 in two parts (Cody and Waite)
  r = r + n * 2.12194440e-4f;
  Vec p = splat(1.9875691500e-4f);  // minimax polynomial of Cephes' expf
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const VecI exponent = ((VecI)shifted - (VecI)magic) << 23;
  const Vec scaled = (Vec)((VecI)p + exponent);
  const Vec finite = x < lowest ? Vec{} : scaled;
  return x == x ? finite : x;
}

inline Vec tanh(Vec x) {
  const Vec magnitude = x < Vec{} ? -x : x;
  const Vec decay = exp(magnitude * -2.0f);
  const Vec positive = (1.0f - decay) / (1.0f + decay);
  return x < Vec{} ? -positive : positive;
}

// Transposes a 16 x 16 tile held in 16 vectors.
inline void transpose(Vec (&rows)[kLanes]) {
  Vec other[kLanes];
  // Stage s swaps blocks of size s between vector pairs that are s apart.
#define DFLASH2_STAGE(from, to, s, low, high)                    \
  for (int i = 0; i < kLanes; ++i) {                             \
    if ((i & s) == 0) {                                          \
      to[i] = __builtin_shuffle(from[i], from[i + s], low);      \
      to[i + s] = __builtin_shuffle(from[i], from[i + s], high); \
    }                                                            \
  }
  const VecI low1 = {0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30};
  const VecI high1 = {1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31};
  const VecI low2 = {0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29};
  const VecI high2 = {2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31};
  const VecI low4 = {0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27};
  const VecI high4 = {4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31};
  const VecI low8 = {0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23};
  const VecI high8 = {8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31};
  DFLASH2_STAGE(rows, other, 1, low1, high1)
  DFLASH2_STAGE(other, rows, 2, low2, high2)
  DFLASH2_STAGE(rows, other, 4, low4, high4)
  DFLASH2_STAGE(other, rows, 8, low8, high8)
#undef DFLASH2_STAGE
}

// How algorithms that serve accelerators too walk along a row: sixteen elements at a time.
struct Lanes16 {
  using Pack = Vec;
  static constexpr int kWidth = kLanes;
  template <typename T>
  static Vec load(const T* p) {
    return dflash2::load(p);
  }
  template <typename T>
  static void store(T* p, Vec v) {
    dflash2::store(p, v);
  }
  static float sum(Vec v) { return reduce_add(v); }
};

}  // namespace dflash2
