// Launcher of core/convolution.h.
#include "../core/convolution.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <optional>

#include "../core/simd.h"
#include "parallel.h"
#include "types.h"

namespace dflash2 {
namespace {

constexpr int64_t kSerialWork = 1 << 17;  // outputs times taps

bool is_like(const at::Tensor& tensor, const at::Tensor& x, at::IntArrayRef shape) {
  return tensor.scalar_type() == x.scalar_type() && tensor.sizes() == shape;
}

at::Tensor launch_convolve(const at::Tensor& x, const at::Tensor& kernel,
                           const std::optional<at::Tensor>& delta,
                           const std::optional<at::Tensor>& bias) {
  TORCH_CHECK_VALUE(x.dim() == 3 && kernel.dim() == 2 && kernel.size(1) == x.size(2) &&
                        kernel.scalar_type() == x.scalar_type(),
                    "convolve_block expects x [n, B, D] and a kernel [k, D] of one dtype, got ",
                    x.sizes(), " and ", kernel.sizes());
  const int64_t blocks = x.size(0), length = x.size(1), channels = x.size(2), taps = kernel.size(0);
  const int64_t groups = delta ? delta->size(-1) : 1;
  TORCH_CHECK_VALUE(
      !delta || (groups > 0 && channels % groups == 0 &&
                 is_like(*delta, x, {blocks, length, taps, groups}) && delta->stride(3) == 1),
      "convolve_block expects delta [", blocks, ", ", length, ", ", taps,
      ", groups] of x's dtype, groups contiguous and dividing ", channels);
  TORCH_CHECK_VALUE(!bias || (is_like(*bias, x, {channels}) && bias->is_contiguous()),
                    "convolve_block expects a bias of ", channels, " elements of x's dtype");
  const at::Tensor rows = x.stride(2) == 1 ? x : x.contiguous(), weights = kernel.contiguous();
  at::Tensor out = at::empty({blocks, length, channels}, x.options());
  const int64_t group_size = channels / groups;
  with_storage_type(x, "convolve_block", [&](auto type) {
    using T = decltype(type);
    const auto compute = [&](int64_t item) {
      const int64_t block = item / length;
      const ConvolutionView<T> view{
          data_of<T>(rows) + block * rows.stride(0),
          data_of<T>(weights),
          delta ? data_of<T>(*delta) + block * delta->stride(0) : nullptr,
          bias ? data_of<T>(*bias) : nullptr,
          static_cast<T*>(out.mutable_data_ptr()) + block * length * channels,
          rows.stride(1),
          delta ? delta->stride(1) : 0,
          delta ? delta->stride(2) : 0,
          channels,
          group_size,
          int(length),
          int(taps)};
      if (!delta || group_size % kLanes == 0) {
        convolve_position<Lanes16>(SerialGroup(), view, int(item % length));
      } else {
        convolve_position<Lanes1>(SerialGroup(), view, int(item % length));
      }
    };
    for_each_item(blocks * length, out.numel() * taps >= kSerialWork, compute);
  });
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(dflash2, CPU, m) { m.impl("convolve_block", launch_convolve); }

}  // namespace dflash2
