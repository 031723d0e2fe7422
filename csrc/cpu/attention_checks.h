// What paged attention asks of its plan before it follows it: a slot is an address.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>

#include "../core/attention_call.h"

namespace dflash2 {

// Sizes of the tensors that the numbers of a plan point into.
struct PlanBounds {
  int64_t tokens, table_rows, table_columns, mapped_slots, cache_slots, mask_bits;
};

inline void check_plan_vector(const char* name, const at::Tensor& vector, int64_t size) {
  TORCH_CHECK_VALUE(vector.scalar_type() == at::kLong && vector.dim() == 1 &&
                        vector.size(0) == size && vector.is_contiguous(),
                    "paged_attention expects int64 ", name, " [", size, "], got ", vector.sizes(),
                    " ", vector.scalar_type());
}

template <typename T>
void check_request(const AttentionCall<T>& call, const PlanBounds& bounds, int r) {
  const int64_t first = call.q_starts[r], end = call.q_starts[r + 1], keys = call.kv_lens[r];
  TORCH_CHECK_VALUE(0 <= first && first <= end && end <= bounds.tokens,
                    "paged_attention expects q_starts that grow up to ", bounds.tokens,
                    " tokens, got ", first, " and ", end, " for request ", r);
  const int64_t length = end - first;
  TORCH_CHECK_VALUE(length <= keys && keys <= bounds.table_columns,
                    "paged_attention expects between ", length, " and ", bounds.table_columns,
                    " keys for request ", r, ", got ", keys);
  const int64_t row = call.table_rows[r];
  TORCH_CHECK_INDEX(0 <= row && row < bounds.table_rows, "paged_attention: row ", row,
                    " is outside of the slot table of ", bounds.table_rows);
  // What left the window may have left the cache as well.
  const int64_t seen = call.window < 0 ? 0 : std::max<int64_t>(0, keys - length - call.window);
  const int32_t* const slots = call.slot_table + row * call.table_stride;
  for (int64_t i = seen; i < keys; ++i) {
    int64_t slot = slots[i];
    if (call.slot_map != nullptr) {
      TORCH_CHECK_INDEX(0 <= slot && slot < bounds.mapped_slots, "paged_attention: slot ", slot,
                        " of request ", r, " is outside of the slot map of ", bounds.mapped_slots);
      slot = call.slot_map[slot];
    }
    TORCH_CHECK_INDEX(0 <= slot && slot < bounds.cache_slots, "paged_attention: slot ", slot,
                      " of request ", r, " is outside of the cache of ", bounds.cache_slots);
  }
  if (call.mask_mode != MaskMode::kTree || length == 0) return;
  const int64_t start = call.mask_offsets[r], stride = call.mask_strides[r];
  TORCH_CHECK_INDEX(
      start >= 0 && stride >= 0 && start + (length - 1) * stride + length <= bounds.mask_bits,
      "paged_attention: the mask of request ", r, " is outside of the ", bounds.mask_bits,
      " given");
}

}  // namespace dflash2
