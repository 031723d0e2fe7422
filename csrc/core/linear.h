// y = x W^T + b for a few rows x, weights as PyTorch keeps them ([columns, depth], depth
// contiguous).
//
// Every output element is one dot product whose order of additions is fixed: sixteen partial sums
// (which elements go to which is load_pair's choice, by type), added pairwise at the end. How many
// rows and columns are computed together only decides which registers hold the partial sums, so a
// row's result is the same bit for bit alone and in any batch. Sums are float32; weights stay in
// their own type. A processor with AVX512_BF16 multiplies bfloat16 in pairs, two neighbouring
// elements of the depth a lane, so that x stays bfloat16, too.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "simd.h"

namespace dflash2 {

constexpr int kPanelColumns = 16;        // columns that one task computes
constexpr int kPanelRows = 64;           // rows that one task computes
constexpr int kCachedBytes = 24 * 1024;  // of x, half of a small first-level cache
constexpr int kUnpackRows = 16;          // from so many rows on, converting the weights first pays

#if defined(__AVX512BF16__)
constexpr bool kMultipliesPairs = true;
#else
constexpr bool kMultipliesPairs = false;
#endif

// In what type the factors of T are multiplied.
template <typename T>
using Factor = std::conditional_t<kMultipliesPairs && std::is_same_v<T, BFloat16>, BFloat16, float>;

template <typename T>
struct LinearCall {
  const Factor<T>* x;  // [rows, width], each row as load_row leaves it
  const T* weight;     // [columns, depth]
  const T* bias;       // [columns] or null
  T* out;              // [rows, columns]
  int64_t rows, columns, depth, width;
  int64_t weight_stride, out_stride;
};

// A row of x or of the weights as float32 in load_pair's order, zeros up to a multiple of 32.
template <typename T>
inline void load_row(const T* row, int64_t depth, float* out) {
  for (int64_t k = 0; k < depth; k += kPair) {
    const int count = int(std::min<int64_t>(kPair, depth - k));
    const VecPair pair = count == kPair ? load_pair(row + k) : load_pair_partial(row + k, count);
    store(out + k, pair.first);
    store(out + k + kLanes, pair.second);
  }
}

// The same where it is multiplied as it is.
inline void load_row(const BFloat16* row, int64_t depth, BFloat16* out) {
  std::copy_n(row, depth, out);
  std::fill(out + depth, out + (depth + kPair - 1) / kPair * kPair, BFloat16{});
}

// 32 weights, to be multiplied with 32 elements of a row that load_row left.
template <typename W>
inline VecPair load_factors(const float*, const W* weights) {
  return load_pair(weights);
}

inline Vec add_products(Vec sums, const float* x, VecPair weights) {
  sums += load(x) * weights.first;
  sums += load(x + kLanes) * weights.second;
  return sums;
}

#if defined(__AVX512BF16__)

inline Vec load_factors(const BFloat16*, const BFloat16* weights) {
  Vec pairs;
  std::memcpy(&pairs, weights, sizeof(pairs));
  return pairs;
}

inline Vec add_products(Vec sums, const BFloat16* x, Vec weights) {
  return (Vec)_mm512_dpbf16_ps((__m512)sums, (__m512bh)load_factors(x, x), (__m512bh)weights);
}

#endif

// Lane i of the result is the sum of the lanes of sums[bit_reverse(i)].
inline Vec add_lanes(Vec (&sums)[kLanes]) {
  const VecI even = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30};
  const VecI odd = even + 1;
  // Each stage adds neighbouring lanes and puts two vectors into one.
  for (int count = kLanes / 2; count > 0; count /= 2) {
    for (int i = 0; i < count; ++i) {
      const Vec a = sums[i], b = sums[i + count];
      sums[i] = __builtin_shuffle(a, b, even) + __builtin_shuffle(a, b, odd);
    }
  }
  return sums[0];
}

constexpr int kBitReverse[kLanes] = {0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15};

// Starts to bring 32 weights into the second-level cache. A processor does not foresee rows this
// short.
template <typename W>
inline void fetch_factors(const W* weights) {
  constexpr int kLine = 64;  // bytes
  for (int at = 0; at < kPair; at += kLine / int(sizeof(W))) __builtin_prefetch(weights + at, 0, 2);
}

// One register tile. `weights` are kColumns pointers to `depth` elements each; those that lie
// `ahead` elements behind them, if it is not 0, are fetched from memory meanwhile.
template <int kRows, int kColumns, typename X, typename W>
inline Vec dot_products(const X* x, int64_t width, const W* const* weights, int64_t depth,
                        int64_t ahead) {
  static_assert(kRows * kColumns == kLanes);
  Vec sums[kRows][kColumns] = {};
  const auto add = [&](int64_t k, int column, const W* from) {
    const auto factors = load_factors(x, from);
    for (int r = 0; r < kRows; ++r) {
      sums[r][column] = add_products(sums[r][column], x + r * width + k, factors);
    }
  };
  int64_t k = 0;
  for (; k + kPair <= depth; k += kPair) {
    for (int c = 0; c < kColumns; ++c) {
      if (ahead != 0) fetch_factors(weights[c] + k + ahead);
      add(k, c, weights[c] + k);
    }
  }
  if (k < depth) {
    for (int c = 0; c < kColumns; ++c) {
      W padded[kPair] = {};
      std::copy_n(weights[c] + k, depth - k, padded);
      add(k, c, padded);
    }
  }
  Vec ordered[kLanes];
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kColumns; ++c) ordered[kBitReverse[r * kColumns + c]] = sums[r][c];
  }
  return add_lanes(ordered);
}

// Up to 16 columns and 64 rows of the result.
template <typename T>
class LinearPanel {
 public:
  LinearPanel(const LinearCall<T>& call, int64_t first_row, int64_t first_column)
      : call_(call),
        row_(first_row),
        row_end_(std::min(call.rows, first_row + kPanelRows)),
        column_(first_column),
        columns_(int(std::min<int64_t>(kPanelColumns, call.columns - first_column))) {}

  // `scratch` holds kPanelColumns * width elements.
  void compute(Factor<T>* scratch) const {
    // Columns behind the last one repeat it; they are computed and not stored.
    const T* weights[kPanelColumns];
    for (int c = 0; c < kPanelColumns; ++c) {
      weights[c] = call_.weight + (column_ + std::min(c, columns_ - 1)) * call_.weight_stride;
    }
    const bool ready = std::is_same_v<T, Factor<T>> && call_.depth % kPair == 0;
    if (ready || row_end_ - row_ < kUnpackRows) {
      run(weights, call_.depth, kPanelColumns * call_.weight_stride);
      return;
    }
    const Factor<T>* unpacked[kPanelColumns];
    for (int c = 0; c < kPanelColumns; ++c) {
      unpacked[c] = scratch + c * call_.width;
      load_row(weights[c], call_.depth, scratch + c * call_.width);
    }
    run(unpacked, call_.width, 0);
  }

 private:
  // `ahead`: distance to the weights of the next panel, or 0.
  template <typename W>
  void run(const W* const* weights, int64_t depth, int64_t ahead) const {
    // A few rows of x stay in the first-level cache while the panel's weights pass by.
    const int64_t fours = row_ + (row_end_ - row_) / 4 * 4;
    const int64_t row_bytes = call_.width * int64_t(sizeof(Factor<T>));
    const int64_t cached = std::max<int64_t>(4, kCachedBytes / row_bytes / 4 * 4);
    for (int64_t first = row_; first < fours; first += cached) {
      const int64_t last = std::min(fours, first + cached);
      for (int c = 0; c < kPanelColumns; c += 4) {
        for (int64_t row = first; row < last; row += 4) {
          tile<4, 4>(weights, depth, row, c, ahead);
        }
      }
    }
    int64_t row = fours;
    if (row + 2 <= row_end_) {
      for (int c = 0; c < kPanelColumns; c += 8) tile<2, 8>(weights, depth, row, c, ahead);
      row += 2;
    }
    if (row < row_end_) tile<1, 16>(weights, depth, row, 0, ahead);
  }

  template <int kRows, int kColumns, typename W>
  void tile(const W* const* weights, int64_t depth, int64_t row, int column, int64_t ahead) const {
    if (column >= columns_) return;
    if (row != row_) ahead = 0;  // once is enough
    const Factor<T>* x = call_.x + row * call_.width;
    const int present = std::min(kColumns, columns_ - column);
    Vec value = dot_products<kRows, kColumns>(x, call_.width, weights + column, depth, ahead);
    if (call_.bias != nullptr) {
      T repeated[kLanes] = {};
      for (int r = 0; r < kRows; ++r) {
        std::copy_n(call_.bias + column_ + column, present, repeated + r * kColumns);
      }
      value += load(repeated);
    }
    T results[kLanes];
    store(results, value);
    T* out = call_.out + row * call_.out_stride + column_ + column;
    for (int r = 0; r < kRows; ++r) {
      if (present == kColumns) {
        std::memcpy(out + r * call_.out_stride, results + r * kColumns, kColumns * sizeof(T));
      } else {
        std::copy_n(results + r * kColumns, present, out + r * call_.out_stride);
      }
    }
  }

  const LinearCall<T>& call_;
  const int64_t row_, row_end_, column_;
  const int columns_;
};

}  // namespace dflash2
