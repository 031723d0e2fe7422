// SYCL's groups for the kernels of device/entry_points.h.
#pragma once

#include <cstdint>
#include <sycl/sycl.hpp>

namespace dflash2_sycl = sycl::ext::oneapi::experimental;

// The sub-group's size comes from the build: 16 or 32.
#define DFLASH2_KERNEL                                                             \
  extern "C" SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((dflash2_sycl::nd_range_kernel<1>)) \
      SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((dflash2_sycl::sub_group_size<DFLASH2_SUB_GROUP>))
#define DFLASH2_SHARED(T, name)                     \
  dflash2_sycl::work_group_static<T> name##_memory; \
  T* const name = &name##_memory

namespace dflash2 {

inline int64_t work_item() {
  return sycl::ext::oneapi::this_work_item::get_work_group<1>().get_group_linear_id();
}

// Another thread's x, word by word.
template <typename T>
inline T shuffle_xor(const sycl::sub_group& group, const T& x, int mask) {
  static_assert(sizeof(T) % sizeof(uint32_t) == 0);
  constexpr int kWords = sizeof(T) / sizeof(uint32_t);
  uint32_t words[kWords];
  __builtin_memcpy(words, &x, sizeof(T));
  for (int i = 0; i < kWords; ++i) words[i] = sycl::permute_group_by_xor(group, words[i], mask);
  T out;
  __builtin_memcpy(&out, words, sizeof(T));
  return out;
}

struct SubGroup {
  static constexpr int kBatch = 1;
  int rank() const { return group().get_local_linear_id(); }
  int size() const { return DFLASH2_SUB_GROUP; }
  void barrier() const {
    // What the sub-group wrote to global memory must be seen as well.
    sycl::group_barrier(group(), sycl::memory_scope::work_group);
  }
  template <typename T, typename Pick>
  T reduce(T x, const Pick& pick) const {
    for (int mask = DFLASH2_SUB_GROUP / 2; mask > 0; mask /= 2) {
      x = pick(x, shuffle_xor(group(), x, mask));
    }
    return x;
  }
  static sycl::sub_group group() { return sycl::ext::oneapi::this_work_item::get_sub_group(); }
};

struct WorkGroup {
  static constexpr int kBatch = 1;
  int rank() const { return group().get_local_linear_id(); }
  int size() const { return group().get_local_linear_range(); }
  void barrier() const { sycl::group_barrier(group()); }
  template <typename T, typename Pick>
  T reduce(T x, const Pick& pick) const {
    struct Partial {
      T of[64];  // one a sub-group
    };
    DFLASH2_SHARED(Partial, partial);
    x = SubGroup().reduce(x, pick);
    barrier();
    if (SubGroup().rank() == 0) partial->of[rank() / DFLASH2_SUB_GROUP] = x;
    barrier();
    T total = partial->of[0];
    for (int i = 1; i < size() / DFLASH2_SUB_GROUP; ++i) total = pick(total, partial->of[i]);
    return total;
  }
  template <typename T>
  void add(T* place, T x) const {
    sycl::atomic_ref<T, sycl::memory_order::relaxed, sycl::memory_scope::work_group>(*place) += x;
  }
  uint32_t take(uint32_t* place) const {
    return sycl::atomic_ref<uint32_t, sycl::memory_order::relaxed, sycl::memory_scope::work_group>(
               *place)
        .fetch_add(1u);
  }
  static sycl::group<1> group() { return sycl::ext::oneapi::this_work_item::get_work_group<1>(); }
};

}  // namespace dflash2
