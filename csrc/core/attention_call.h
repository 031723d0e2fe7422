// What paged attention works on: one call, the softmax state of some rows, a thread's buffers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "simd.h"

namespace dflash2 {

constexpr int kBlock = 64;     // keys per step of the online softmax
constexpr int kChunk = 256;    // keys per independently computed chunk
constexpr int kTileRows = 64;  // greatest number of (token, head) rows of a tile

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

// What the scores of a row whose greatest score is x are shifted by: such a row may see nothing
// yet.
inline Vec finite(Vec x) { return x == kMinusInfinity ? Vec{} : x; }

inline int round_up(int x, int multiple) { return (x + multiple - 1) / multiple * multiple; }

// Floats that begin at a cache line, as a vector register wants them.
class Floats {
 public:
  void grow(size_t count) { lines_.resize(std::max(lines_.size(), (count + kLanes - 1) / kLanes)); }
  float* data() { return lines_.empty() ? nullptr : lines_[0].lanes; }

 private:
  struct alignas(64) Line {
    float lanes[kLanes];
  };
  std::vector<Line> lines_;
};

// Softmax state of the rows of one tile: running maximum, sum of weights, weighted values. `rows`
// is a multiple of kLanes, so that everything keeps the alignment of the memory.
struct RowStates {
  float* maximum;  // [rows]
  float* sums;     // [rows]
  float* values;   // [rows, v_width]

  static int64_t floats(int64_t rows, int v_width) { return rows * (2 + v_width); }
  static RowStates at(float* memory, int64_t rows, int v_width) {
    return {memory + rows * (v_width + 1), memory + rows * v_width, memory};
  }
  void clear(int64_t rows, int v_width) const {
    std::fill(maximum, maximum + rows, kMinusInfinity);
    std::fill(sums, sums + rows, 0.0f);
    std::fill(values, values + rows * v_width, 0.0f);
  }
};

// Buffers of one tile; a thread reuses them from tile to tile. The rows of a tile are the lanes of
// a vector, `lanes` of them; those behind the last row belong to nobody.
struct TileScratch {
  std::vector<int32_t> begins, ends;        // [lanes] logical positions that each row sees
  std::vector<std::vector<int>> ancestors;  // kTree: block tokens that each token sees, in order
  Floats queries;                           // [lanes of channels, lanes]
  Floats keys;                              // [keys, lanes of channels], 64 positions
  Floats values;                            // [lanes of keys, width] of the same
  Floats scores;                            // [keys, lanes] of the same, later their weights
  Floats block_keys, block_scores;          // kTree: of the request's own block
};

}  // namespace dflash2
