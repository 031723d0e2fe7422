// Moves of KV slots inside one buffer: accepted tree nodes to consecutive places.
#pragma once

#include <cstdint>
#include <cstring>

namespace dflash2 {

// Copies slot sources[i] to targets[i] for every i. All sources are read before a target is
// written, so moves may overlap. `scratch` holds count * bytes; moves onto themselves cost nothing.
inline void move_slots(char* buffer, int64_t bytes, const int64_t* targets, const int64_t* sources,
                       int64_t count, char* scratch) {
  for (int64_t i = 0; i < count; ++i) {
    if (targets[i] != sources[i]) {
      std::memcpy(scratch + i * bytes, buffer + sources[i] * bytes, bytes);
    }
  }
  for (int64_t i = 0; i < count; ++i) {
    if (targets[i] != sources[i]) {
      std::memcpy(buffer + targets[i] * bytes, scratch + i * bytes, bytes);
    }
  }
}

}  // namespace dflash2
