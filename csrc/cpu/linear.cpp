// Launcher of core/linear.h.
#include "../core/linear.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <optional>
#include <vector>

#include "parallel.h"

namespace dflash2 {
namespace {

// Multiplications below which the calling thread does all the work.
constexpr int64_t kSerialWork = 1 << 19;

template <typename X>
X* room_for(std::vector<X>& memory, int64_t count) {
  if (int64_t(memory.size()) < count) memory.resize(count);
  return memory.data();
}

template <typename T>
void launch(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
            const at::Tensor& out) {
  LinearCall<T> call;
  call.rows = x.size(0), call.depth = x.size(1), call.columns = weight.size(0);
  call.width = (call.depth + kPair - 1) / kPair * kPair;
  call.weight = static_cast<const T*>(weight.const_data_ptr());
  call.bias = bias ? static_cast<const T*>(bias->const_data_ptr()) : nullptr;
  call.out = static_cast<T*>(out.mutable_data_ptr());
  call.weight_stride = weight.stride(0), call.out_stride = out.stride(0);
  thread_local std::vector<Factor<T>> inputs;
  Factor<T>* unpacked = room_for(inputs, call.rows * call.width);
  const T* rows = static_cast<const T*>(x.const_data_ptr());
  for (int64_t r = 0; r < call.rows; ++r) {
    load_row(rows + r * x.stride(0), call.depth, unpacked + r * call.width);
  }
  call.x = unpacked;

  const int64_t panels = (call.columns + kPanelColumns - 1) / kPanelColumns;
  const int64_t row_blocks = (call.rows + kPanelRows - 1) / kPanelRows;
  const auto compute = [&](int64_t item) {
    thread_local std::vector<Factor<T>> scratch;
    LinearPanel<T>(call, item % row_blocks * kPanelRows, item / row_blocks * kPanelColumns)
        .compute(room_for(scratch, kPanelColumns * call.width));
  };
  const bool is_much = call.rows * call.columns * call.depth >= kSerialWork;
  for_each_item(panels * row_blocks, is_much, compute);
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight,
                  const std::optional<at::Tensor>& bias) {
  TORCH_CHECK_VALUE(weight.dim() == 2 && x.dim() >= 1 && x.size(-1) == weight.size(1),
                    "linear expects x [..., depth] and weights [columns, depth], got ", x.sizes(),
                    " and ", weight.sizes());
  TORCH_CHECK_VALUE(x.scalar_type() == weight.scalar_type() && weight.stride(1) == 1,
                    "linear expects x and row-contiguous weights of one dtype, got ",
                    x.scalar_type(), " and ", weight.scalar_type());
  TORCH_CHECK_VALUE(!bias || (bias->dim() == 1 && bias->size(0) == weight.size(0) &&
                              bias->scalar_type() == x.scalar_type() && bias->is_contiguous()),
                    "linear expects a bias of ", weight.size(0), " elements of x's dtype");
  at::Tensor rows = x.dim() == 2 ? x : x.reshape({-1, x.size(-1)});
  if (rows.stride(1) != 1) rows = rows.contiguous();
  at::Tensor out = at::empty({rows.size(0), weight.size(0)}, x.options());
  switch (x.scalar_type()) {
    case at::kFloat:
      launch<float>(rows, weight, bias, out);
      break;
    case at::kBFloat16:
      launch<BFloat16>(rows, weight, bias, out);
      break;
    case at::kHalf:
      launch<Float16>(rows, weight, bias, out);
      break;
    default:
      TORCH_CHECK_VALUE(false, "linear takes float32, bfloat16 or float16, got ", x.scalar_type());
  }
  if (x.dim() == 2) return out;
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = weight.size(0);
  return out.view(shape);
}

}  // namespace

TORCH_LIBRARY_IMPL(dflash2, CPU, m) { m.impl("linear", linear); }

}  // namespace dflash2
