// Gumbel noise that is a function of request seed, position and column: the noise of SGLang's
// seeded sampler (0.5.23). MurmurHash3 (Appleby; x86, 32 bit, seed 0) of 8 + 4 + 4 bytes, then
// -log(-log(hash / (2^32 - 1))).
#pragma once

#include <cmath>
#include <cstdint>

#include "scalar.h"

namespace dflash2 {

constexpr uint32_t kUint32Max = 0xffffffffu;
constexpr double kTopGumbel = 22.180709777918249;  // of the greatest hash: -log(2^-32)

DFLASH2_INLINE uint32_t rotate_left(uint32_t x, int bits) { return x << bits | x >> (32 - bits); }

DFLASH2_INLINE uint32_t absorb(uint32_t state, uint32_t block) {
  block = rotate_left(block * 0xcc9e2d51u, 15) * 0x1b873593u;
  return rotate_left(state ^ block, 13) * 5 + 0xe6546b64u;
}

// The state of the hash behind seed and position; columns go on from there.
DFLASH2_INLINE uint32_t noise_key(int64_t seed, int64_t position) {
  const uint64_t bits = uint64_t(seed);
  return absorb(absorb(absorb(0, uint32_t(bits)), uint32_t(bits >> 32)), uint32_t(position));
}

DFLASH2_INLINE uint32_t column_hash(uint32_t key, uint32_t column) {
  uint32_t state = absorb(key, column) ^ 16u;  // bytes absorbed
  state = (state ^ state >> 16) * 0x85ebca6bu;
  state = (state ^ state >> 13) * 0xc2b2ae35u;
  return state ^ state >> 16;
}

// Double precision: float has no room for the uniform numbers next to 1, which win.
DFLASH2_INLINE double gumbel(uint32_t hash) {
  if (hash == kUint32Max) return kTopGumbel;
  if (hash == 0) return -709.78271289338397;  // -log of the greatest double
  return -std::log(-std::log(double(hash) / double(kUint32Max)));
}

// Never below gumbel(hash), and for the large values, which win, above it by less than 0.07. With
// u = hash / (2^32 - 1): -log(u) >= 1 - u, so the noise is at most -log(1 - u). That logarithm is
// read off a float: its bits, as a number, are exponent plus mantissa, and log2(1 + m) >= m.
DFLASH2_INLINE float gumbel_bound(uint32_t hash) {
  constexpr float kLn2 = 0.693147181f;
  const float log2_below = float(int32_t(bits_of_float(float(~hash)))) * (1.0f / 8388608.0f);
  return (159.0f + 2e-4f - log2_below) * kLn2;  // 159 = 32 + the exponent's bias of 127
}

}  // namespace dflash2
