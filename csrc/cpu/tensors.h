// What launchers ask of their tensors before they touch them.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

namespace dflash2 {

inline void check_int64(const char* operation, const char* name, const at::Tensor& tensor,
                        at::IntArrayRef shape) {
  TORCH_CHECK_VALUE(tensor.scalar_type() == at::kLong && tensor.sizes() == shape, operation,
                    " expects int64 ", name, " ", shape, ", got ", tensor.sizes(), " ",
                    tensor.scalar_type());
}

// Indices into a cache of `size` entries.
inline void check_indices(const char* name, const at::Tensor& indices, int64_t size) {
  const int64_t* index = indices.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < indices.numel(); ++i) {
    TORCH_CHECK_INDEX(index[i] >= 0 && index[i] < size, name, " ", index[i],
                      " is outside of the cache of ", size);
  }
}

}  // namespace dflash2
