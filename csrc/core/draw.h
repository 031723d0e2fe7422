// One draw from a row of logits: the argmax of logit / temperature + Gumbel noise over the columns
// that top-k, top-p and min-p leave.
//
// The logits are read once, and exact noise is computed for few columns: a cheap bound of the noise
// tells which ones can win at all (about log V of V columns).
#pragma once

#include <cstdint>

#include "argmax.h"
#include "noise.h"
#include "rank_limit.h"

namespace dflash2 {

// Two scores nearer than this may be ranked either way by an implementation that rounds
// log-probabilities to float; a mass nearer than that to top-p may fall on either side.
constexpr double kScoreDoubt = 2e-5;
constexpr double kMassDoubt = 2e-5;
constexpr uint32_t kDistanceDoubt = 268;  // 4e-6

constexpr int64_t kNoColumn = int64_t(1) << 62;

struct Draw {
  double score, runner_up;
  int64_t column;  // kNoColumn: none
  bool is_doubtful;
};

struct HigherDraw {
  DFLASH2_INLINE Draw operator()(Draw a, Draw b) const {
    const bool first = a.score > b.score || (a.score == b.score && a.column < b.column);
    Draw best = first ? a : b;
    const Draw other = first ? b : a;
    if (other.score > best.runner_up) best.runner_up = other.score;
    if (other.runner_up > best.runner_up) best.runner_up = other.runner_up;
    return best;
  }
};

// The token of a draw; a doubtful one as -1 - token if that is asked for.
DFLASH2_INLINE int64_t drawn_token(const Draw& draw, bool marks_doubt) {
  const int64_t token = draw.column == kNoColumn ? 0 : draw.column;
  return draw.is_doubtful && marks_doubt ? -1 - token : token;
}

DFLASH2_INLINE Draw no_draw() { return {-__builtin_inf(), -__builtin_inf(), kNoColumn, false}; }

// What a sum must exceed to matter: the best score, less what rounding of the bound may hide.
DFLASH2_INLINE float pruning_floor(const Draw& best) {
  const double magnitude = best.score < 0 ? -best.score : best.score;
  return float(best.score - 1e-3 - 1e-6 * magnitude);
}

struct KeepAll {
  DFLASH2_INLINE bool operator()(int64_t) const { return true; }
};

// The best of the columns that `keeps` lets pass; noise belongs to columns.
template <typename Group, typename Keeps>
DFLASH2_INLINE Draw draw_by_column(const Group& group, const LogitRow& row, uint32_t key,
                                   const Keeps& keeps) {
  Draw best = no_draw();
  float floor = -__builtin_inff();
  const float scale = 1.0f / row.temperature;
  for_each_batch(group, row.columns, [&](int64_t first, int count) {
    const float* logits = row.logits + first;
    const auto may_win = [&](int i) {
      return logits[i] * scale + gumbel_bound(column_hash(key, uint32_t(first + i))) > floor;
    };
    if (count_in_batch(group, count, may_win) == 0) return;
    for (int i = 0; i < count; ++i) {
      if (!may_win(i) || !keeps(first + i)) continue;
      const double noise = gumbel(column_hash(key, uint32_t(first + i)));
      const double score = double(row.at(first + i)) + noise;
      best = HigherDraw()(best, {score, -__builtin_inf(), first + i, false});
      floor = pruning_floor(best);
    }
  });
  best = group.reduce(best, HigherDraw());
  best.is_doubtful = best.score - best.runner_up < kScoreDoubt;
  return best;
}

// Columns whose distance is within rounding of that one, itself included.
template <typename Group>
DFLASH2_INLINE int64_t near_ties(const Group& group, const LogitRow& row, uint32_t distance) {
  const uint32_t low = distance > kDistanceDoubt ? distance - kDistanceDoubt : 0;
  int64_t near = 0;
  for_each_batch(group, row.columns, [&](int64_t first, int count) {
    near += count_in_batch(group, count, [&](int i) {
      return row.distance(first + i) - low <= distance - low + kDistanceDoubt;
    });
  });
  return group.reduce(near, Add<int64_t>());
}

// What a restriction leaves of a row. A careful one also keeps what an implementation with other
// rounding, or another order of ties, could have kept, and then tells whether a winner is doubtful.
template <typename Group>
class RestrictedRow {
 public:
  DFLASH2_INLINE RestrictedRow(const Group& group, const LogitRow& row, const Restriction& law,
                               bool is_careful, Histogram* histogram)
      : group_(group), row_(row), law_(law), is_careful_(is_careful), cut_(group, row, histogram) {
    limit_ = cut_.find(law.top_k, double(law.top_p) + (is_careful ? kMassDoubt : 0.0));
    cuts_ties_ = is_careful && near_ties(group, row, limit_.distance) > 1;
    if (law.min_p > 0.0f) {
      const double farthest = -std::log(double(law.min_p)) * double(kDistanceUnits);
      if (farthest < double(kFar)) min_p_distance_ = uint32_t(farthest);
    }
  }

  DFLASH2_INLINE bool keeps(int64_t column) const {
    const uint32_t distance = row_.distance(column);
    const uint32_t farthest = min_p_distance_ + (is_careful_ ? kDistanceDoubt : 0);
    if (distance == kFar || distance > farthest) return false;
    return cuts_ties_ ? distance <= limit_.distance + kDistanceDoubt
                      : limit_.keeps(distance, column);
  }

  DFLASH2_INLINE bool doubts(int64_t column, bool rank_matters) const {
    if (!is_careful_) return false;
    const uint32_t distance = row_.distance(column);
    const double mass = double(cut_.weight_before(distance, column)) / double(cut_.total());
    if (mass > double(law_.top_p) - kMassDoubt) return true;
    if (is_near(distance, min_p_distance_)) return true;
    if (cuts_ties_ && is_near(distance, limit_.distance)) return true;
    return rank_matters && near_ties(group_, row_, distance) > 1;
  }

 private:
  DFLASH2_INLINE static bool is_near(uint32_t a, uint32_t b) {
    return (a > b ? a - b : b - a) <= kDistanceDoubt;
  }

  const Group& group_;
  const LogitRow& row_;
  const Restriction law_;
  const bool is_careful_;
  RankCut<Group> cut_;
  RankLimit limit_;
  bool cuts_ties_;  // the cut falls among columns that rounding may tell apart differently
  uint32_t min_p_distance_ = kFar;
};

template <typename Group>
DFLASH2_INLINE Draw draw_restricted(const Group& group, const LogitRow& row, uint32_t key,
                                    const Restriction& law, bool is_careful, Histogram* histogram) {
  const RestrictedRow<Group> rest(group, row, law, is_careful, histogram);
  Draw best = draw_by_column(group, row, key, [&](int64_t column) { return rest.keeps(column); });
  if (best.column != kNoColumn && !best.is_doubtful) {
    best.is_doubtful = rest.doubts(best.column, false);
  }
  return best;
}

}  // namespace dflash2
