// KV moves on accelerators: one column of bytes of every slot of a buffer.
#pragma once

#include <cstdint>

#include "group.h"

namespace dflash2 {

// Copies `bytes` bytes of slot sources[i] to slot targets[i] for every i. All sources are read
// before a target is written, so moves may overlap. `scratch` holds count * bytes, for this group
// alone.
template <typename Group>
DFLASH2_INLINE void move_column(const Group& group, uint8_t* column, int64_t stride, int64_t bytes,
                                const int64_t* targets, const int64_t* sources, int64_t count,
                                uint8_t* scratch) {
  for (int64_t i = group.rank(); i < count; i += group.size()) {
    const uint8_t* from = column + sources[i] * stride;
    for (int64_t j = 0; j < bytes; ++j) scratch[i * bytes + j] = from[j];
  }
  group.barrier();
  for (int64_t i = group.rank(); i < count; i += group.size()) {
    if (targets[i] == sources[i]) continue;
    uint8_t* to = column + targets[i] * stride;
    for (int64_t j = 0; j < bytes; ++j) to[j] = scratch[i * bytes + j];
  }
}

}  // namespace dflash2
