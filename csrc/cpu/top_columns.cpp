// The best few columns of each row.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <tuple>
#include <vector>

#include "../core/best_columns.h"
#include "parallel.h"

namespace dflash2 {
namespace {

constexpr int64_t kSerialColumns = 1 << 14;  // below, waking other threads costs more

// Writes the places of the `count` greatest of row[0, length), best first, equals by place. What
// compares with nothing (a NaN) or is minus infinity comes last.
void find_best(const float* row, int64_t length, int64_t count, int64_t* places) {
  BestColumns best(count);
  const auto value = [&](int64_t column) { return row[column]; };
  best.gather(
      length, [](float floor) { return floor; }, value, [](int64_t) { return true; }, value);
  for (int64_t rank = 0; rank < best.size(); ++rank) places[rank] = best.column(rank);
  int64_t column = 0;
  for (int64_t rank = best.size(); rank < count; ++column) {
    if (!best.contains(column)) places[rank++] = column;
  }
}

std::tuple<at::Tensor, at::Tensor> top_columns(const at::Tensor& logits, int64_t count) {
  TORCH_CHECK_VALUE(logits.dim() >= 1 && logits.scalar_type() == at::kFloat,
                    "top_columns expects float32 logits [..., V], got ", logits.sizes(), " ",
                    logits.scalar_type());
  const int64_t length = logits.size(-1);
  TORCH_CHECK_VALUE(count >= 1 && count <= length, "top_columns expects a count of 1 to ", length,
                    ", got ", count);
  const at::Tensor rows = logits.contiguous();
  std::vector<int64_t> shape = logits.sizes().vec();
  shape.back() = count;
  const at::Tensor values = at::empty(shape, logits.options());
  const at::Tensor columns = at::empty(shape, logits.options().dtype(at::kLong));
  const auto find = [&](int64_t item) {
    const float* row = rows.const_data_ptr<float>() + item * length;
    int64_t* places = columns.mutable_data_ptr<int64_t>() + item * count;
    find_best(row, length, count, places);
    float* found = values.mutable_data_ptr<float>() + item * count;
    for (int64_t rank = 0; rank < count; ++rank) found[rank] = row[places[rank]];
  };
  const int64_t items = rows.numel() / length;
  for_each_item(items, rows.numel() >= kSerialColumns, find);
  return {values, columns};
}

}  // namespace

TORCH_LIBRARY_IMPL(dflash2, CPU, m) { m.impl("top_columns", top_columns); }

}  // namespace dflash2
