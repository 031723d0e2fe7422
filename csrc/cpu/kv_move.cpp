// Launcher of core/kv_move.h: all layers' K and V buffers in one call.
#include "../core/kv_move.h"

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <algorithm>
#include <vector>

namespace dflash2 {
namespace {

void move_kv(const at::Tensor& data_ptrs, const at::Tensor& strides, const at::Tensor& targets,
             const at::Tensor& sources) {
  TORCH_CHECK_VALUE(data_ptrs.element_size() == sizeof(void*) && data_ptrs.is_contiguous() &&
                        strides.scalar_type() == at::kLong && strides.is_contiguous() &&
                        strides.numel() == data_ptrs.numel(),
                    "move_kv expects one 64-bit address and one int64 stride a buffer");
  TORCH_CHECK_VALUE(targets.scalar_type() == at::kLong && targets.is_contiguous() &&
                        sources.scalar_type() == at::kLong && sources.is_contiguous() &&
                        targets.numel() == sources.numel(),
                    "move_kv expects as many int64 targets as sources, got ", targets.numel(),
                    " and ", sources.numel());
  const auto* address = static_cast<const uint64_t*>(data_ptrs.const_data_ptr());
  const int64_t* bytes = strides.const_data_ptr<int64_t>();
  const int64_t count = targets.numel();
  int64_t widest = 0;
  for (int64_t b = 0; b < strides.numel(); ++b) widest = std::max(widest, bytes[b]);
  std::vector<char> scratch(count * widest);
  for (int64_t b = 0; b < strides.numel(); ++b) {
    move_slots(reinterpret_cast<char*>(address[b]), bytes[b], targets.const_data_ptr<int64_t>(),
               sources.const_data_ptr<int64_t>(), count, scratch.data());
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(dflash2, CPU, m) { m.impl("move_kv", move_kv); }

}  // namespace dflash2
