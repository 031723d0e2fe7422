// What paged attention works on: one call, the softmax state of some rows, a thread's buffers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "simd.h"

namespace dflash2 {

constexpr int kBlock = 64;                   // keys per step of the online softmax
constexpr int kBlockVecs = kBlock / kLanes;  // 4
constexpr int kChunk = 256;                  // keys per independently computed chunk
constexpr int kTileRows = 64;                // greatest number of (token, head) rows of a tile
#if defined(__AVX512F__)
constexpr int kRowStep = 8;  // rows of one register block
#else
constexpr int kRowStep = 4;
#endif

enum class MaskMode : int { kCausal = 0, kBidirectional = 1, kTree = 2 };

// One call. Strides are in elements.
template <typename T>
struct AttentionCall {
  const T* q;        // [tokens, heads, head_dim]
  const T* k_cache;  // [slots, kv_heads, head_dim]
  const T* v_cache;  // [slots, kv_heads, v_dim]
  T* out;            // [tokens, heads, v_dim]
  int64_t q_stride, q_head_stride, k_stride, k_head_stride, v_stride, v_head_stride;
  int64_t out_stride, out_head_stride;
  int heads, kv_heads, head_dim, v_dim;

  int requests;
  const int32_t* slot_table;  // [rows, table_stride]
  int64_t table_stride;
  const int64_t* table_rows;  // [requests]
  const int64_t* slot_map;    // slot of the table -> slot of this layer's cache, or null
  const int64_t* q_starts;    // [requests + 1]
  const int64_t* kv_lens;     // [requests], query tokens included

  MaskMode mask_mode;
  const bool* tree_mask;        // kTree: row i of request r at offsets[r] + i * strides[r]
  const int64_t* mask_offsets;  // [requests]
  const int64_t* mask_strides;  // [requests]
  int64_t window;               // greatest visible distance of positions, or -1
  float scale;
  float logit_cap;     // 0: none
  const float* sinks;  // [heads] or null
};

// Softmax state of the rows of one tile: running maximum, per-lane sums, weighted values.
struct RowStates {
  float* maximum;  // [rows]
  float* sums;     // [rows, kLanes]
  float* values;   // [rows, v_width]

  static int64_t floats(int64_t rows, int v_width) { return rows * (1 + kLanes + v_width); }
  static RowStates at(float* memory, int64_t rows, int v_width) {
    // Values first: they keep the alignment of `memory`.
    return {memory + rows * (v_width + kLanes), memory + rows * v_width, memory};
  }
  void clear(int64_t rows, int v_width) const {
    std::fill(maximum, maximum + rows, kMinusInfinity);
    std::fill(sums, sums + rows * kLanes, 0.0f);
    std::fill(values, values + rows * v_width, 0.0f);
  }
};

// Buffers of one tile; a thread reuses them from tile to tile.
struct TileScratch {
  std::vector<int64_t> begins, ends;        // [tokens] logical positions that each token sees
  std::vector<std::vector<int>> ancestors;  // kTree: block tokens that each token sees, in order
  std::vector<float> queries;               // [rows, k_width], scaled
  std::vector<float> keys, values, scores;  // of one block of 64 positions
  std::vector<float> block_keys, block_values, block_scores;  // kTree: of the request's own block
};

inline int round_up(int x, int multiple) { return (x + multiple - 1) / multiple * multiple; }

}  // namespace dflash2
