// The best few columns of a row, gathered by one thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "group.h"

namespace dflash2 {

struct ScoredColumn {
  float score;
  int64_t column;

  DFLASH2_INLINE bool before(const ScoredColumn& other) const {
    return score > other.score || (score == other.score && column < other.column);
  }
};

class BestColumns {
 public:
  using Group = SerialGroup;

  explicit BestColumns(int64_t size) : size_(size) { columns_.reserve(size + 1); }

  // Looks at columns [0, count). Scores are computed where bound(column) > threshold(floor) and
  // admits(column), `floor` being the score that a column must exceed to enter; what is not above
  // -infinity never enters.
  template <typename Threshold, typename Bound, typename Admits, typename Score>
  void gather(int64_t count, const Threshold& threshold, const Bound& bound, const Admits& admits,
              const Score& score) {
    if (size_ == 0) return;
    const SerialGroup group;
    for_each_batch(group, count, [&](int64_t first, int length) {
      const float least = threshold(floor());
      const auto may_enter = [&](int i) { return bound(first + i) > least; };
      if (count_in_batch(group, length, may_enter) == 0) return;
      for (int i = 0; i < length; ++i) {
        if (may_enter(i) && admits(first + i)) offer({score(first + i), first + i});
      }
    });
  }

  int64_t size() const { return int64_t(columns_.size()); }
  int64_t column(int64_t rank) const { return columns_[rank].column; }
  bool contains(int64_t column) const {
    return std::any_of(columns_.begin(), columns_.end(),
                       [&](const ScoredColumn& one) { return one.column == column; });
  }

 private:
  float floor() const { return size() < size_ ? -__builtin_inff() : columns_.back().score; }

  void offer(ScoredColumn one) {
    if (!(one.score > -__builtin_inff()) || (size() == size_ && !one.before(columns_.back()))) {
      return;
    }
    const auto place = std::find_if(columns_.begin(), columns_.end(),
                                    [&](const ScoredColumn& other) { return one.before(other); });
    columns_.insert(place, one);
    if (size() > size_) columns_.pop_back();
  }

  const int64_t size_;
  std::vector<ScoredColumn> columns_;  // best first
};

}  // namespace dflash2
