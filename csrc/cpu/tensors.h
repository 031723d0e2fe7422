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

}  // namespace dflash2
