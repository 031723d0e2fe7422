// CUDA's groups for the kernels of device/entry_points.h.
#pragma once

#include <cstdint>

#define DFLASH2_KERNEL extern "C" __global__
#define DFLASH2_SHARED(T, name)                                    \
  __shared__ __align__(16) unsigned char name##_memory[sizeof(T)]; \
  T* const name = reinterpret_cast<T*>(name##_memory)

namespace dflash2 {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

__device__ __forceinline__ int64_t work_item() { return blockIdx.x; }

// Another lane's x, word by word.
template <typename T>
__device__ __forceinline__ T shuffle_xor(const T& x, int mask) {
  static_assert(sizeof(T) % sizeof(uint32_t) == 0);
  T out;
  const uint32_t* from = reinterpret_cast<const uint32_t*>(&x);
  uint32_t* to = reinterpret_cast<uint32_t*>(&out);
#pragma unroll
  for (int i = 0; i < int(sizeof(T) / sizeof(uint32_t)); ++i) {
    to[i] = __shfl_xor_sync(kAllLanes, from[i], mask);
  }
  return out;
}

struct SubGroup {
  static constexpr int kBatch = 1;
  __device__ int rank() const { return threadIdx.x % kWarp; }
  __device__ int size() const { return kWarp; }
  __device__ void barrier() const { __syncwarp(); }
  template <typename T, typename Pick>
  __device__ T reduce(T x, const Pick& pick) const {
#pragma unroll
    for (int mask = kWarp / 2; mask > 0; mask /= 2) x = pick(x, shuffle_xor(x, mask));
    return x;
  }
};

struct WorkGroup {
  static constexpr int kBatch = 1;
  __device__ int rank() const { return threadIdx.x; }
  __device__ int size() const { return blockDim.x; }
  __device__ void barrier() const { __syncthreads(); }
  template <typename T, typename Pick>
  __device__ T reduce(T x, const Pick& pick) const {
    __shared__ __align__(16) unsigned char memory[kWarp * sizeof(T)];
    T* partial = reinterpret_cast<T*>(memory);
    x = SubGroup().reduce(x, pick);
    __syncthreads();
    if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = x;
    __syncthreads();
    T total = partial[0];
    for (int i = 1; i < int(blockDim.x) / kWarp; ++i) total = pick(total, partial[i]);
    return total;
  }
  __device__ void add(uint32_t* place, uint32_t x) const { atomicAdd(place, x); }
  __device__ void add(uint64_t* place, uint64_t x) const {
    atomicAdd(reinterpret_cast<unsigned long long*>(place), static_cast<unsigned long long>(x));
  }
  __device__ uint32_t take(uint32_t* place) const { return atomicAdd(place, 1u); }
};

}  // namespace dflash2
