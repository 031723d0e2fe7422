// In what form a tile of attention holds queries, keys, values and weights.
//
// Its buffers are made of 32-bit lanes. Usually a lane holds one number as a float. Where the
// processor multiplies pairs of bfloat16 in one instruction (AVX512_BF16), a lane of bfloat16 data
// holds two: neighbouring channels of queries and keys, the values or weights of neighbouring
// positions. That is twice the products at the same speed in half the memory. The weights of the
// softmax are rounded to bfloat16 then, as fused attentions on accelerators round them.
#pragma once

#include <cstring>
#include <type_traits>

#include "simd.h"

namespace dflash2 {

// One number a lane.
template <typename T>
struct SinglePacking {
  static constexpr int kPerLane = 1;
  static constexpr float kOnes = 1.0f;  // a lane of ones, which adds up what lanes hold

  // sums + one * many; `one` is the same for all lanes.
  static Vec multiply_add(Vec sums, Vec many, const float* one) {
    sums += *one * many;
    return sums;
  }
  // Sixteen lanes of neighbouring channels.
  static Vec load_channels(const T* from) { return load(from); }
  // Sixteen channels of kPerLane positions, one row of the cache each.
  static Vec load_positions(const T* const (&rows)[kPerLane]) { return load(rows[0]); }
  // The weights of kPerLane positions.
  static Vec pack(const Vec (&weights)[kPerLane]) { return weights[0]; }
};

#if defined(__AVX512BF16__)

// Two bfloat16 a lane, the earlier one in the lower half.
struct PairPacking {
  static constexpr int kPerLane = 2;
  static constexpr float kOnes = __builtin_bit_cast(float, 0x3f803f80);

  static Vec multiply_add(Vec sums, Vec many, const float* one) {
    int32_t pair;
    std::memcpy(&pair, one, sizeof(pair));
    return (Vec)_mm512_dpbf16_ps((__m512)sums, (__m512bh)many, (__m512bh)(VecI{} + pair));
  }
  static Vec load_channels(const BFloat16* from) {
    Vec lanes;
    std::memcpy(&lanes, from, sizeof(lanes));
    return lanes;
  }
  static Vec load_positions(const BFloat16* const (&rows)[kPerLane]) {
    return (Vec)(load_bits(rows[0]) | load_bits(rows[1]) << 16);
  }
  static Vec pack(const Vec (&weights)[kPerLane]) {
    typedef uint16_t Halves __attribute__((vector_size(64)));
    const Halves side_by_side = (Halves)_mm512_cvtne2ps_pbh((__m512)weights[1], (__m512)weights[0]);
    const Halves alternating = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    return (Vec)__builtin_shuffle(side_by_side, alternating);
  }
};

template <typename T>
using Packing = std::conditional_t<std::is_same_v<T, BFloat16>, PairPacking, SinglePacking<T>>;

#else

template <typename T>
using Packing = SinglePacking<T>;

#endif

}  // namespace dflash2
