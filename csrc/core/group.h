// The threads that work on one item together. Algorithms in this folder take a group and use
//
//   rank(), size()     the calling thread and how many there are;
//   barrier()          writes to memory that the group shares become visible to all its threads;
//   reduce(x, pick)    pick over every thread's x, known to all; pick is associative and
//                      commutative;
//   add(place, x)      *place += x, whoever else adds; place is memory that the group shares;
//   take(place)        the number at place, which is one greater for the next thread (work-groups).
//
// A loop `for (i = group.rank(); i < n; i += group.size())` then shares n pieces of work out. On
// the CPU a group is one thread and the compiler drops all of it; on accelerators it is a sub-group
// or a work-group. What an algorithm returns depends on neither.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define DFLASH2_INLINE __host__ __device__ __forceinline__
#else
#define DFLASH2_INLINE inline
#endif

namespace dflash2 {

struct SerialGroup {
  static constexpr int kBatch = 64;
  DFLASH2_INLINE int rank() const { return 0; }
  DFLASH2_INLINE int size() const { return 1; }
  DFLASH2_INLINE void barrier() const {}
  template <typename T, typename Pick>
  DFLASH2_INLINE T reduce(T x, const Pick&) const {
    return x;
  }
  template <typename T>
  DFLASH2_INLINE void add(T* place, T x) const {
    *place += x;
  }
};

// Calls visit(first, count) for the batches of [0, items) that fall to the calling thread; count is
// kBatch but for the last one.
template <typename Group, typename Visit>
DFLASH2_INLINE void for_each_batch(const Group& group, int64_t items, const Visit& visit) {
  constexpr int64_t kBatch = Group::kBatch;
  for (int64_t first = group.rank() * kBatch; first < items; first += group.size() * kBatch) {
    visit(first, items - first < kBatch ? int(items - first) : int(kBatch));
  }
}

// How many i < count satisfy the condition. The common count is known to the compiler, so that the
// loop becomes a few vector instructions.
template <typename Group, typename Condition>
DFLASH2_INLINE int count_in_batch(const Group&, int count, const Condition& condition) {
  int hits = 0;
  if (count == Group::kBatch) {
    for (int i = 0; i < Group::kBatch; ++i) hits += condition(i) ? 1 : 0;
  } else {
    for (int i = 0; i < count; ++i) hits += condition(i) ? 1 : 0;
  }
  return hits;
}

}  // namespace dflash2
