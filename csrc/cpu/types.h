// From a tensor's dtype to the storage type of the algorithms.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include "../core/scalar.h"

namespace dflash2 {

// Calls function(T{}) with the storage type of a tensor.
template <typename Function>
auto with_storage_type(const at::Tensor& tensor, const char* operation, const Function& function) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return function(float{});
    case at::kBFloat16:
      return function(BFloat16{});
    case at::kHalf:
      return function(Float16{});
    default:
      TORCH_CHECK_VALUE(false, operation, " takes float32, bfloat16 or float16, got ",
                        tensor.scalar_type());
  }
}

template <typename T>
const T* data_of(const at::Tensor& tensor) {
  return static_cast<const T*>(tensor.const_data_ptr());
}

}  // namespace dflash2
