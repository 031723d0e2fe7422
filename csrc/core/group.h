// The threads that work on one item together. Algorithms in this folder take a group and use
//
//   rank(), size()     the calling thread and how many there are;
//   barrier()          writes to memory that the group shares become visible to all its threads;
//   reduce(x, pick)    pick over every thread's x, known to all; pick is associative and
//   commutative.
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
  DFLASH2_INLINE int rank() const { return 0; }
  DFLASH2_INLINE int size() const { return 1; }
  DFLASH2_INLINE void barrier() const {}
  template <typename T, typename Pick>
  DFLASH2_INLINE T reduce(T x, const Pick&) const {
    return x;
  }
};

}  // namespace dflash2
