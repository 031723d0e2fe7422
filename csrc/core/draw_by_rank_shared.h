// The draw whose noise belongs to sorted ranks, by a work-group. draw_by_rank.h sorts the row; here
// ranks are looked at in runs that fit into memory which the group shares, the likeliest first.
// Most laws end within the first run, and few rows need a second: logits only fall.
#pragma once

#include <cstdint>

#include "draw.h"

namespace dflash2 {

constexpr int kRankRun = 1024;

struct RankRun {
  uint32_t distances[kRankRun];
  uint32_t columns[kRankRun];
  uint32_t count;
};

template <typename Group>
class RankedDraw {
 public:
  // `histogram` and `run` are memory that the group shares.
  DFLASH2_INLINE RankedDraw(const Group& group, const LogitRow& row, uint32_t key,
                            Histogram* histogram, RankRun* run)
      : group_(group), row_(row), key_(key), histogram_(histogram), run_(run) {}

  DFLASH2_INLINE Draw draw(const Restriction& law, bool is_careful) {
    const RestrictedRow<Group> rest(group_, row_, law, is_careful, histogram_);
    Draw best = no_draw();
    RankLimit seen = {0, -1};  // none
    for (int64_t first = 0;; first += kRankRun) {
      // More mass than there is, so that ranks alone decide where the run ends.
      const RankLimit end = RankCut<Group>(group_, row_, histogram_).find(first + kRankRun, 2.0);
      const int held = gather(seen, end, rest);
      best = HigherDraw()(best, best_of_run(first, held, pruning_floor(best)));
      seen = end;
      const float logit = row_.top - float(end.distance) / kDistanceUnits;  // of what follows
      if (held < kRankRun || logit + float(kTopGumbel) < pruning_floor(best)) break;
    }
    best.is_doubtful = best.score - best.runner_up < kScoreDoubt ||
                       (best.column != kNoColumn && rest.doubts(best.column, true));
    return best;
  }

 private:
  // Puts what the law keeps between two cuts into the run, in any order; tells how many there are.
  DFLASH2_INLINE int gather(const RankLimit& seen, const RankLimit& end,
                            const RestrictedRow<Group>& rest) const {
    group_.barrier();
    if (group_.rank() == 0) run_->count = 0;
    group_.barrier();
    for (int64_t column = group_.rank(); column < row_.columns; column += group_.size()) {
      const uint32_t distance = row_.distance(column);
      if (seen.keeps(distance, column) || !end.keeps(distance, column)) continue;
      if (!rest.keeps(column)) continue;
      const uint32_t place = group_.take(&run_->count);
      run_->distances[place] = distance;
      run_->columns[place] = uint32_t(column);
    }
    group_.barrier();
    return int(run_->count);
  }

  // Every entry counts those before it, which gives its rank and so its noise.
  DFLASH2_INLINE Draw best_of_run(int64_t first, int held, float floor) const {
    Draw best = no_draw();
    for (int i = group_.rank(); i < held; i += group_.size()) {
      const RankLimit mine = {run_->distances[i], int64_t(run_->columns[i])};
      const float logit = row_.at(mine.column);
      if (logit + float(kTopGumbel) < floor) continue;
      uint32_t rank = uint32_t(first);
      for (int other = 0; other < held; ++other) {
        rank += other != i && mine.keeps(run_->distances[other], run_->columns[other]) ? 1 : 0;
      }
      const double noise = gumbel(column_hash(key_, rank));
      best = HigherDraw()(best, {double(logit) + noise, -__builtin_inf(), mine.column, false});
    }
    return group_.reduce(best, HigherDraw());
  }

  const Group& group_;
  const LogitRow& row_;
  const uint32_t key_;
  Histogram* const histogram_;
  RankRun* const run_;
};

}  // namespace dflash2
