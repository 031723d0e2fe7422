// The two products of attention, for the rows of a tile and the keys of a block.
//
// In the first one the lanes of a vector are rows, in the second one they are channels of a value.
// So both read keys and values as they lie in memory, channel after channel, and nothing has to be
// transposed but the queries, once a tile. Sums stay in registers; what is loaded of a key serves
// every row, what is loaded of a row several keys.
//
// One element's order of additions is fixed (lanes of channels, or of keys, in ascending order; one
// multiply-add of the packing each). How many rows are computed together only decides which
// registers hold sums. Widths, depths and counts are in lanes here.
#pragma once

#include <type_traits>

#include "attention_packing.h"
#include "simd.h"

namespace dflash2 {

// Keys that one register block takes; blocks of keys are padded to a multiple of it.
constexpr int kKeyStep = 8;

// scores[key][row] = scale * keys[key] . queries[..][row] for kKeys keys and kVecs times 16 rows.
template <typename P, int kVecs, int kKeys>
inline void score_block(const float* queries, const float* keys, int width, int depth, int lanes,
                        float scale, float* scores) {
  Vec sums[kKeys][kVecs] = {};
  for (int d = 0; d < depth; ++d) {
    Vec query[kVecs];
    for (int v = 0; v < kVecs; ++v) query[v] = load(queries + d * lanes + v * kLanes);
    for (int j = 0; j < kKeys; ++j) {
      const float* key = keys + j * width + d;
      for (int v = 0; v < kVecs; ++v) sums[j][v] = P::multiply_add(sums[j][v], query[v], key);
    }
  }
  for (int j = 0; j < kKeys; ++j) {
    for (int v = 0; v < kVecs; ++v) store(scores + j * lanes + v * kLanes, sums[j][v] * scale);
  }
}

// The same for kKeyStep keys and all lanes.
template <typename P>
inline void score_keys(const float* queries, const float* keys, int width, int depth, int lanes,
                       float scale, float* scores) {
  int lane = 0;
#if defined(__AVX512F__)
  for (; lane + 4 * kLanes <= lanes; lane += 4 * kLanes) {
    for (int j = 0; j < kKeyStep; j += 4) {
      score_block<P, 4, 4>(queries + lane, keys + j * width, width, depth, lanes, scale,
                           scores + j * lanes + lane);
    }
  }
  for (; lane + 2 * kLanes <= lanes; lane += 2 * kLanes) {
    score_block<P, 2, 8>(queries + lane, keys, width, depth, lanes, scale, scores + lane);
  }
  for (; lane < lanes; lane += kLanes) {
    score_block<P, 1, 8>(queries + lane, keys, width, depth, lanes, scale, scores + lane);
  }
#else
  for (; lane < lanes; lane += kLanes) {
    for (int j = 0; j < kKeyStep; j += 4) {
      score_block<P, 1, 4>(queries + lane, keys + j * width, width, depth, lanes, scale,
                           scores + j * lanes + lane);
    }
  }
#endif
}

// out[row] += sum over keys of weights[key][row] * values[key], for kRows rows and kVecs times 16
// channels.
template <typename P, int kRows, int kVecs>
inline void weigh_block(const float* weights, int lanes, const float* values, int width, int count,
                        float* out) {
  Vec sums[kRows][kVecs];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) sums[r][v] = load(out + r * width + v * kLanes);
  }
  for (int key = 0; key < count; ++key) {
    Vec value[kVecs];
    for (int v = 0; v < kVecs; ++v) value[v] = load(values + key * width + v * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const float* weight = weights + key * lanes + r;
      for (int v = 0; v < kVecs; ++v) sums[r][v] = P::multiply_add(sums[r][v], value[v], weight);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) store(out + r * width + v * kLanes, sums[r][v]);
  }
}

// The same for all channels of `rows` rows, or one row more: lanes come in sixteens. A slice of the
// values stays in the nearest cache while all rows pass.
template <typename P>
inline void weigh_values(const float* weights, int lanes, int rows, const float* values, int width,
                         int count, float* out) {
#if defined(__AVX512F__)
  constexpr int kRows = 8, kVecs = 2;
#else
  constexpr int kRows = 4, kVecs = 1;
#endif
  int d = 0;
  const auto slice = [&](auto vecs) {
    constexpr int kWide = decltype(vecs)::value;
    int r = 0;
    for (; r + kRows <= rows; r += kRows) {
      weigh_block<P, kRows, kWide>(weights + r, lanes, values + d, width, count,
                                   out + r * width + d);
    }
    for (; r < rows; r += 2) {
      weigh_block<P, 2, kWide>(weights + r, lanes, values + d, width, count, out + r * width + d);
    }
    d += kWide * kLanes;
  };
  while (d + kVecs * kLanes <= width) slice(std::integral_constant<int, kVecs>());
  while (d < width) slice(std::integral_constant<int, 1>());
}

}  // namespace dflash2
