// Candidates of a drafted position under shared noise: the best tokens without noise, which the
// selector was trained on, and the best others with it.
//
// As in draw.h, a bound of the noise tells which columns can be among the best at all.
#pragma once

#include <cmath>
#include <cstdint>

#include "draw.h"

namespace dflash2 {

// Ranks of a restricted law that are looked at, as in the reference (kernels/truncation.py).
constexpr int64_t kMaxDraftRanks = 256;

struct CandidateColumns {
  int64_t* tokens;                      // [inside + others]
  float *unary_logits, *log_q, *noise;  // [inside + others]
};

// The search in one row. `Best` gathers columns: BestColumns on the host, SharedBestColumns on
// accelerators.
template <typename Best>
class CandidateSearch {
 public:
  using Group = typename Best::Group;

  // `weight` is that of log q against the noise.
  DFLASH2_INLINE CandidateSearch(const Group& group, const LogitRow& row, uint32_t key,
                                 float weight)
      : group_(group), row_(row), key_(key), weight_(weight), log_mass_(std::log(mass())) {}

  // Writes `total` candidates; `keeps` restricts the others.
  template <typename Keeps>
  DFLASH2_INLINE void find(const Keeps& keeps, Best& inside, Best& others, int64_t total,
                           const CandidateColumns& out) const {
    const auto admit_all = [](int64_t) { return true; };
    const auto logit = [&](int64_t column) { return row_.logits[column]; };
    inside.gather(row_.columns, [](float floor) { return floor; }, logit, admit_all, logit);

    const float scale = weight_ / row_.temperature, lift = weight_ * (row_.top + log_mass_);
    others.gather(
        row_.columns, [&](float floor) { return floor - 1e-3f + lift; },
        [&](int64_t column) {
          return row_.logits[column] * scale + gumbel_bound(column_hash(key_, uint32_t(column)));
        },
        [&](int64_t column) { return !inside.contains(column) && keeps(column); },
        [&](int64_t column) { return weight_ * log_q(column) + noise(column); });
    if (group_.rank() == 0) write_all(inside, others, total, out);
  }

 private:
  DFLASH2_INLINE void write_all(const Best& inside, const Best& others, int64_t total,
                                const CandidateColumns& out) const {
    int64_t at = 0;
    for (int64_t i = 0; i < inside.size(); ++i) write(inside.column(i), true, out, at++);
    for (int64_t i = 0; i < others.size(); ++i) write(others.column(i), true, out, at++);
    // Too few are possible: any others, so that candidates stay distinct; nobody takes them.
    for (int64_t column = 0; at < total; ++column) {
      if (!inside.contains(column) && !others.contains(column)) write(column, false, out, at++);
    }
  }

  DFLASH2_INLINE float log_q(int64_t column) const {
    return row_.at(column) - row_.top - log_mass_;
  }
  DFLASH2_INLINE float noise(int64_t column) const {
    return float(gumbel(column_hash(key_, uint32_t(column))));
  }

  DFLASH2_INLINE void write(int64_t column, bool is_possible, const CandidateColumns& out,
                            int64_t at) const {
    out.tokens[at] = column;
    out.unary_logits[at] = row_.logits[column];
    out.log_q[at] = is_possible ? log_q(column) : -__builtin_inff();
    out.noise[at] = noise(column);
  }

  // Of the row, in units of its greatest probability.
  DFLASH2_INLINE float mass() const {
    constexpr int kBatch = Group::kBatch;
    float lanes[kBatch] = {};
    for_each_batch(group_, row_.columns, [&](int64_t first, int count) {
      if (count == kBatch) {
        for (int i = 0; i < kBatch; ++i) {
          lanes[i] += exp_of_negative(row_.at(first + i) - row_.top);
        }
      } else {
        for (int i = 0; i < count; ++i) lanes[i] += exp_of_negative(row_.at(first + i) - row_.top);
      }
    });
    double sum = 0;
    for (const float lane : lanes) sum += lane;
    return float(group_.reduce(sum, Add<double>()));
  }

  const Group& group_;
  const LogitRow& row_;
  const uint32_t key_;
  const float weight_, log_mass_;
};

template <typename Best>
DFLASH2_INLINE void find_candidates(const CandidateSearch<Best>& search, const LogitRow& row,
                                    const typename Best::Group& group, Restriction law,
                                    Histogram* histogram, Best& inside, Best& others, int64_t total,
                                    const CandidateColumns& out) {
  if (!law.applies()) return search.find(KeepAll(), inside, others, total, out);
  if (law.top_k > kMaxDraftRanks) law.top_k = kMaxDraftRanks;
  const RestrictedRow<typename Best::Group> rest(group, row, law, false, histogram);
  search.find([&](int64_t column) { return rest.keeps(column); }, inside, others, total, out);
}

}  // namespace dflash2
