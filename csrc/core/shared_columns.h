// The best few columns of a row, gathered by a work-group in memory that its threads share.
//
// Columns that may be among the best are appended to a buffer in any order. Before it could
// overflow, the best of it are moved to its front and the floor rises: few columns of a long row
// pass the first floors, so this happens two or three times.
#pragma once

#include <cstdint>

#include "best_columns.h"

namespace dflash2 {

constexpr int kMaxBest = 64;
constexpr int kColumnBuffer = 1024;

struct ColumnBuffer {
  float scores[kColumnBuffer];
  uint32_t columns[kColumnBuffer];
  uint32_t count;
};

struct BestList {
  float scores[kMaxBest];
  uint32_t columns[kMaxBest];
};

template <typename WorkGroup>
class SharedBestColumns {
 public:
  using Group = WorkGroup;

  // `buffer` is free again after gather(); `best` holds the result, size <= kMaxBest.
  DFLASH2_INLINE SharedBestColumns(const Group& group, int64_t size, ColumnBuffer* buffer,
                                   BestList* best)
      : group_(group), capacity_(int(size)), buffer_(buffer), best_(best) {}

  // As BestColumns::gather. A work-group has at most kColumnBuffer - kMaxBest threads.
  template <typename Threshold, typename Bound, typename Admits, typename Score>
  DFLASH2_INLINE void gather(int64_t count, const Threshold& threshold, const Bound& bound,
                             const Admits& admits, const Score& score) {
    size_ = 0;
    if (capacity_ == 0) return;
    start_with(0);
    float floor = -__builtin_inff();
    for (int64_t first = 0; first < count; first += group_.size()) {
      const int64_t column = first + group_.rank();
      if (column < count && bound(column) > threshold(floor) && admits(column)) {
        const float own = score(column);
        if (own > -__builtin_inff()) append(own, column);
      }
      group_.barrier();
      const int held = int(buffer_->count);
      group_.barrier();  // nobody appends before all have read
      const bool is_last = first + group_.size() >= count;
      if (is_last || held + group_.size() > kColumnBuffer || (held >= capacity_ && size_ == 0)) {
        keep_best(held);
        if (size_ == capacity_) floor = best_->scores[capacity_ - 1];
      }
    }
  }

  DFLASH2_INLINE int64_t size() const { return size_; }
  DFLASH2_INLINE int64_t column(int64_t rank) const { return best_->columns[rank]; }
  DFLASH2_INLINE bool contains(int64_t column) const {
    for (int i = 0; i < size_; ++i) {
      if (best_->columns[i] == column) return true;
    }
    return false;
  }

 private:
  DFLASH2_INLINE void start_with(int count) const {
    if (group_.rank() == 0) buffer_->count = count;
    group_.barrier();
  }

  DFLASH2_INLINE void append(float score, int64_t column) const {
    const uint32_t place = group_.take(&buffer_->count);
    buffer_->scores[place] = score;
    buffer_->columns[place] = uint32_t(column);
  }

  DFLASH2_INLINE ScoredColumn entry(int i) const {
    return {buffer_->scores[i], int64_t(buffer_->columns[i])};
  }

  // Every entry counts those before it, which is its rank.
  DFLASH2_INLINE void keep_best(int held) {
    for (int i = group_.rank(); i < held; i += group_.size()) {
      const ScoredColumn mine = entry(i);
      int rank = 0;
      for (int other = 0; other < held && rank < capacity_; ++other) {
        rank += entry(other).before(mine) ? 1 : 0;
      }
      if (rank < capacity_) {
        best_->scores[rank] = mine.score;
        best_->columns[rank] = uint32_t(mine.column);
      }
    }
    group_.barrier();
    size_ = held < capacity_ ? held : capacity_;
    for (int i = group_.rank(); i < size_; i += group_.size()) {
      buffer_->scores[i] = best_->scores[i];
      buffer_->columns[i] = best_->columns[i];
    }
    start_with(size_);
  }

  const Group& group_;
  const int capacity_;
  int size_ = 0;
  ColumnBuffer* const buffer_;
  BestList* const best_;
};

}  // namespace dflash2
