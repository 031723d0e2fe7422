// Argmax of a row, the lowest column in a tie; a NaN counts as the greatest number, as in PyTorch.
#pragma once

#include <cstdint>

#include "group.h"

namespace dflash2 {

struct Peak {
  float value;
  int64_t column;  // -1: nothing seen
};

DFLASH2_INLINE bool beats(float value, float other) {
  return value > other || (value != value && other == other);
}

struct HigherPeak {
  DFLASH2_INLINE Peak operator()(Peak a, Peak b) const {
    if (a.column < 0) return b;
    if (b.column < 0) return a;
    if (beats(a.value, b.value)) return a;
    if (beats(b.value, a.value)) return b;
    return a.column < b.column ? a : b;
  }
};

template <typename Group>
DFLASH2_INLINE Peak argmax_row(const Group& group, const float* row, int64_t columns) {
  Peak best = {-__builtin_inff(), -1};
  for_each_batch(group, columns, [&](int64_t first, int count) {
    const float* x = row + first;
    const float top = best.value;
    // !(x <= top) also holds for NaN. Few batches hold a new maximum, the others are only read.
    if (best.column >= 0 &&
        count_in_batch(group, count, [&](int i) { return !(x[i] <= top); }) == 0)
      return;
    for (int i = 0; i < count; ++i) {
      if (best.column < 0 || beats(x[i], best.value)) best = {x[i], first + i};
    }
  });
  return group.reduce(best, HigherPeak());
}

}  // namespace dflash2
