// Where top-k, top-p and min-p cut a row of logits: the last rank that is kept.
//
// Ranks are ordered by distance to the greatest logit, in fixed point, then by column. Weights are
// fixed point as well, so that sums do not depend on the order of additions and every backend finds
// the same cut. It is found digit by digit: a histogram of counts and weights over the leading bits
// of the distance tells in which bucket the cut lies, the next one looks into that bucket only.
#pragma once

#include <cstdint>

#include "scalar.h"

namespace dflash2 {

// Distances are in units of 2^-26. Beyond 32 a column weighs nothing: noise spans less than that.
constexpr int kDistanceBits = 31;
constexpr uint32_t kFar = 1u << kDistanceBits;
constexpr float kDistanceUnits = 67108864.0f;  // 2^26
constexpr int kDigitBits = 11;
constexpr int kBuckets = 1 << kDigitBits;
constexpr float kWeightUnits = 4398046511104.0f;  // 2^42

constexpr int64_t kNoTopK = 1 << 30;  // SGLang's number for the whole vocabulary

// Restrictions of a request's law, as SGLang's sampler applies them.
struct Restriction {
  int64_t top_k;  // ranks kept at most
  float top_p;    // a rank is out if more than this mass stands before it
  float min_p;    // a column is out if less than this share of the greatest probability

  DFLASH2_INLINE bool applies() const { return top_k < kNoTopK || top_p < 1.0f || min_p > 0.0f; }
};

// Kept are columns nearer than `distance`, and those that far up to and including `column`.
struct RankLimit {
  uint32_t distance;
  int64_t column;

  DFLASH2_INLINE bool keeps(uint32_t other, int64_t other_column) const {
    return other < distance || (other == distance && other_column <= column);
  }
};

struct Histogram {
  uint64_t weights[kBuckets];
  uint32_t counts[kBuckets];
};

DFLASH2_INLINE uint64_t weight_at(uint32_t distance) {
  return uint64_t(exp_of_negative(float(distance) * (-1.0f / kDistanceUnits)) * kWeightUnits);
}

template <typename T>
struct Add {
  DFLASH2_INLINE T operator()(T a, T b) const { return a + b; }
};

// One row of logits, divided by the temperature.
struct LogitRow {
  const float* logits;  // [columns]
  int64_t columns;
  float temperature;
  float top;  // the greatest logit, divided by the temperature

  DFLASH2_INLINE float at(int64_t column) const { return logits[column] / temperature; }
  DFLASH2_INLINE uint32_t distance(int64_t column) const {
    const float gap = top - at(column);
    return gap < 32.0f ? uint32_t(gap * kDistanceUnits) : kFar;  // NaN and -inf are far
  }
};

template <typename Group>
class RankCut {
 public:
  // `histogram` is memory that the group shares.
  DFLASH2_INLINE RankCut(const Group& group, const LogitRow& row, Histogram* histogram)
      : group_(group), row_(row), histogram_(histogram) {}

  // The cut for ranks before which at most `mass` of the row's weight stands. Call it once.
  DFLASH2_INLINE RankLimit find(int64_t top_k, double mass) {
    uint32_t prefix = 0;
    int64_t count_before = 0;
    uint64_t weight_before = 0;
    for (int bits = kDistanceBits; bits > 0;) {
      const int shift = bits > kDigitBits ? bits - kDigitBits : 0;
      fill(prefix, bits, shift);
      const int buckets = 1 << (bits - shift);
      if (bits == kDistanceBits) {
        for (int b = 0; b < buckets; ++b) total_ += histogram_->weights[b];
        limit_ = uint64_t(mass * double(total_));
      }
      int bucket = 0;
      for (; bucket < buckets; ++bucket) {
        const int64_t counts = count_before + histogram_->counts[bucket];
        const uint64_t weights = weight_before + histogram_->weights[bucket];
        if (counts > top_k || weights > limit_) break;
        count_before = counts;
        weight_before = weights;
      }
      if (bucket == buckets && bits == kDistanceBits) return {kFar, -1};
      if (bucket == buckets) --bucket;  // unreachable: the bucket looked into holds the cut
      prefix = prefix << (bits - shift) | uint32_t(bucket);
      bits = shift;
      if (bits == 0) {
        return limit_among_ties(prefix, histogram_->counts[bucket], histogram_->weights[bucket],
                                top_k - count_before, limit_ - weight_before);
      }
    }
    return {kFar, -1};
  }

  DFLASH2_INLINE uint64_t total() const { return total_; }

  // Weight of the ranks before a column.
  DFLASH2_INLINE uint64_t weight_before(uint32_t distance, int64_t column) const {
    const RankLimit before = {distance, column - 1};
    uint64_t sum = 0;
    for_each_batch(group_, row_.columns, [&](int64_t first, int count) {
      for (int i = 0; i < count; ++i) {
        const uint32_t d = row_.distance(first + i);
        sum += before.keeps(d, first + i) ? weight_at(d) : 0;
      }
    });
    return group_.reduce(sum, Add<uint64_t>());
  }

 private:
  // Counts the columns whose leading bits are `prefix` by their next bits.
  DFLASH2_INLINE void fill(uint32_t prefix, int bits, int shift) {
    group_.barrier();
    for (int b = group_.rank(); b < kBuckets; b += group_.size()) {
      histogram_->counts[b] = 0;
      histogram_->weights[b] = 0;
    }
    group_.barrier();
    const uint32_t mask = (1u << (bits - shift)) - 1;
    for_each_batch(group_, row_.columns, [&](int64_t first, int count) {
      uint32_t distances[Group::kBatch];
      for (int i = 0; i < count; ++i) distances[i] = row_.distance(first + i);
      const auto inside = [&](int i) { return distances[i] >> bits == prefix; };
      if (count_in_batch(group_, count, inside) == 0) return;
      uint64_t weights[Group::kBatch];
      for (int i = 0; i < count; ++i) weights[i] = weight_at(distances[i]);
      for (int i = 0; i < count; ++i) {
        if (!inside(i)) continue;
        group_.add(&histogram_->counts[distances[i] >> shift & mask], 1u);
        group_.add(&histogram_->weights[distances[i] >> shift & mask], weights[i]);
      }
    });
    group_.barrier();
  }

  // The cut among columns of one distance: `ranks` are still wanted, `weight` may still be passed.
  DFLASH2_INLINE RankLimit limit_among_ties(uint32_t distance, uint32_t ties, uint64_t weights,
                                            int64_t ranks, uint64_t weight) const {
    const uint64_t each = weights / ties;
    int64_t kept = ranks < int64_t(ties) ? ranks : int64_t(ties);
    if (each > 0 && weight / each + 1 < uint64_t(kept)) kept = int64_t(weight / each + 1);
    if (kept == int64_t(ties)) return {distance, row_.columns};
    int64_t low = -1, high = row_.columns - 1;  // the cut lies in (low, high]; -1 keeps none
    if (kept == 0) return {distance, -1};
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      if (ties_up_to(distance, middle) >= kept) {
        high = middle;
      } else {
        low = middle;
      }
    }
    return {distance, high};
  }

  DFLASH2_INLINE int64_t ties_up_to(uint32_t distance, int64_t column) const {
    int64_t ties = 0;
    for_each_batch(group_, column + 1, [&](int64_t first, int count) {
      ties += count_in_batch(group_, count,
                             [&](int i) { return row_.distance(first + i) == distance; });
    });
    return group_.reduce(ties, Add<int64_t>());
  }

  const Group& group_;
  const LogitRow& row_;
  Histogram* const histogram_;
  uint64_t total_ = 0, limit_ = 0;
};

}  // namespace dflash2
