// Candidates of a drafted position under shared noise: the best tokens without noise, which the
// selector was trained on, and the best others with it. On the host only.
//
// As in draw.h, a bound of the noise tells which columns can be among the best at all.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "draw.h"

namespace dflash2 {

// Ranks of a restricted law that are looked at, as in the reference (kernels/truncation.py).
constexpr int64_t kMaxDraftRanks = 256;

struct ScoredColumn {
  float score;
  int64_t column;

  bool before(const ScoredColumn& other) const {
    return score > other.score || (score == other.score && column < other.column);
  }
};

// The `size` best columns seen, best first.
class BestColumns {
 public:
  explicit BestColumns(int64_t size) : size_(size) { columns_.reserve(size + 1); }

  // What a score must exceed to enter.
  float floor() const {
    if (size_ == 0) return __builtin_inff();
    return int64_t(columns_.size()) < size_ ? -__builtin_inff() : columns_.back().score;
  }
  bool contains(int64_t column) const {
    return std::any_of(columns_.begin(), columns_.end(),
                       [&](const ScoredColumn& one) { return one.column == column; });
  }
  void offer(ScoredColumn one) {
    if (size_ == 0 || (int64_t(columns_.size()) == size_ && !one.before(columns_.back()))) return;
    const auto place = std::find_if(columns_.begin(), columns_.end(),
                                    [&](const ScoredColumn& other) { return one.before(other); });
    columns_.insert(place, one);
    if (int64_t(columns_.size()) > size_) columns_.pop_back();
  }
  const std::vector<ScoredColumn>& columns() const { return columns_; }

 private:
  const int64_t size_;
  std::vector<ScoredColumn> columns_;
};

struct CandidateColumns {
  int64_t* tokens;                      // [inside + others]
  float *unary_logits, *log_q, *noise;  // [inside + others]
};

struct CandidateCounts {
  int64_t inside, others;
};

class CandidateSearch {
 public:
  // `weight` is that of log q against the noise, `law` what restricts the others.
  CandidateSearch(const LogitRow& row, uint32_t key, float weight, const Restriction& law,
                  Histogram* histogram)
      : row_(row), key_(key), weight_(weight), log_mass_(std::log(mass())) {
    if (law.applies()) rest_.emplace(group_, row, law, false, histogram);
  }

  void find(const CandidateCounts& counts, const CandidateColumns& out) const {
    BestColumns inside(counts.inside), others(counts.others);
    search_inside(inside);
    search_others(inside, others);
    int64_t at = 0;
    for (const ScoredColumn& one : inside.columns()) write(one.column, true, out, at++);
    for (const ScoredColumn& one : others.columns()) write(one.column, true, out, at++);
    // Too few are possible: any others, so that candidates stay distinct; nobody takes them.
    for (int64_t column = 0; at < counts.inside + counts.others; ++column) {
      if (!inside.contains(column) && !others.contains(column)) write(column, false, out, at++);
    }
  }

 private:
  void search_inside(BestColumns& inside) const {
    for_each_batch(group_, row_.columns, [&](int64_t first, int count) {
      const float* logits = row_.logits + first;
      const float floor = inside.floor();
      const auto may_enter = [&](int i) { return logits[i] > floor; };
      if (floor > -__builtin_inff() && count_in_batch(group_, count, may_enter) == 0) return;
      for (int i = 0; i < count; ++i) inside.offer({logits[i], first + i});
    });
  }

  void search_others(const BestColumns& inside, BestColumns& others) const {
    const float scale = weight_ / row_.temperature;
    for_each_batch(group_, row_.columns, [&](int64_t first, int count) {
      const float floor = others.floor() - 1e-3f + weight_ * (row_.top + log_mass_);
      const auto may_enter = [&](int i) {
        const uint32_t hash = column_hash(key_, uint32_t(first + i));
        return row_.logits[first + i] * scale + gumbel_bound(hash) > floor;
      };
      if (count_in_batch(group_, count, may_enter) == 0) return;
      for (int i = 0; i < count; ++i) {
        const int64_t column = first + i;
        if (!may_enter(i) || inside.contains(column)) continue;
        if (rest_ && !rest_->keeps(column)) continue;
        others.offer({weight_ * log_q(column) + noise(column), column});
      }
    });
  }

  float log_q(int64_t column) const { return row_.at(column) - row_.top - log_mass_; }
  float noise(int64_t column) const { return float(gumbel(column_hash(key_, uint32_t(column)))); }

  void write(int64_t column, bool is_possible, const CandidateColumns& out, int64_t at) const {
    out.tokens[at] = column;
    out.unary_logits[at] = row_.logits[column];
    out.log_q[at] = is_possible ? log_q(column) : -__builtin_inff();
    out.noise[at] = noise(column);
  }

  // Of the row, in units of its greatest probability.
  float mass() const {
    float lanes[SerialGroup::kBatch] = {};
    for_each_batch(group_, row_.columns, [&](int64_t first, int count) {
      if (count == SerialGroup::kBatch) {
        for (int i = 0; i < SerialGroup::kBatch; ++i) {
          lanes[i] += exp_of_negative(row_.at(first + i) - row_.top);
        }
      } else {
        for (int i = 0; i < count; ++i) lanes[i] += exp_of_negative(row_.at(first + i) - row_.top);
      }
    });
    double sum = 0;
    for (const float lane : lanes) sum += lane;
    return float(sum);
  }

  const SerialGroup group_{};
  const LogitRow& row_;
  const uint32_t key_;
  const float weight_, log_mass_;
  std::optional<RestrictedRow<SerialGroup>> rest_;
};

}  // namespace dflash2
