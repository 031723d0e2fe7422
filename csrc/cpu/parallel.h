// Dynamic scheduling over PyTorch's own thread pool (a second OpenMP pool would fight with it).
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>

namespace dflash2 {

// Calls body(item) for 0 <= item < items; threads take the next item when they are done with one.
// Where they are not worth waking, one thread does it all.
template <typename Body>
void for_each_item(int64_t items, bool worth_threads, const Body& body) {
  const int64_t threads = worth_threads ? std::min<int64_t>(items, at::get_num_threads()) : 1;
  if (threads <= 1 || at::in_parallel_region()) {
    for (int64_t item = 0; item < items; ++item) body(item);
    return;
  }
  std::atomic<int64_t> next{0};
  at::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t worker = begin; worker < end; ++worker) {
      for (int64_t item = next++; item < items; item = next++) body(item);
    }
  });
}

}  // namespace dflash2
