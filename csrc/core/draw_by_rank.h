// The draw whose noise belongs to sorted ranks, as SGLang draws from laws that top-k or top-p
// restrict. On the host only: it sorts what is left of the row.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "draw.h"

namespace dflash2 {

inline Draw draw_by_rank(const LogitRow& row, uint32_t key, const Restriction& law, bool is_careful,
                         Histogram* histogram, std::vector<uint64_t>& order) {
  const SerialGroup group;
  const RestrictedRow<SerialGroup> rest(group, row, law, is_careful, histogram);
  order.clear();
  for (int64_t column = 0; column < row.columns; ++column) {
    if (rest.keeps(column)) order.push_back(uint64_t(row.distance(column)) << 32 | column);
  }
  std::sort(order.begin(), order.end());

  Draw best = no_draw();
  for (size_t rank = 0; rank < order.size(); ++rank) {
    const int64_t column = order[rank] & kUint32Max;
    const float logit = row.at(column);
    const float floor = pruning_floor(best);
    if (logit + float(kTopGumbel) < floor) break;  // logits only fall from here on
    const uint32_t hash = column_hash(key, uint32_t(rank));
    if (!(logit + gumbel_bound(hash) > floor)) continue;
    best = HigherDraw()(best, {double(logit) + gumbel(hash), -__builtin_inf(), column, false});
  }
  best.is_doubtful = best.score - best.runner_up < kScoreDoubt ||
                     (best.column != kNoColumn && rest.doubts(best.column, true));
  return best;
}

}  // namespace dflash2
