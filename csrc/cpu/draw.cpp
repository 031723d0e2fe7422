// Launchers of core/argmax.h, core/draw.h and core/draw_by_rank.h.
#include "../core/draw.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <optional>
#include <vector>

#include "../core/draw_by_rank.h"
#include "parallel.h"
#include "tensors.h"

namespace dflash2 {
namespace {

constexpr int64_t kSerialColumns = 1 << 15;  // below, waking other threads costs more

void check_logits(const char* name, const at::Tensor& logits) {
  TORCH_CHECK_VALUE(logits.scalar_type() == at::kFloat && logits.dim() == 3 && logits.size(2) > 0,
                    name, " expects float32 logits [bs, N, V >= 1], got ", logits.sizes(), " ",
                    logits.scalar_type());
}

at::Tensor launch_argmax(const at::Tensor& logits) {
  check_logits("greedy_tokens", logits);
  const at::Tensor rows = logits.contiguous();
  const int64_t bs = rows.size(0), nodes = rows.size(1), columns = rows.size(2);
  at::Tensor tokens = at::empty({bs, nodes}, logits.options().dtype(at::kLong));
  const float* row = rows.const_data_ptr<float>();
  int64_t* token = tokens.mutable_data_ptr<int64_t>();
  for_each_item(bs * nodes, bs * nodes * columns >= kSerialColumns, [&](int64_t r) {
    token[r] = argmax_row(SerialGroup(), row + r * columns, columns).column;
  });
  return tokens;
}

template <typename T>
const T* values_of(const char* name, const std::optional<at::Tensor>& tensor, at::ScalarType type,
                   int64_t bs) {
  if (!tensor) return nullptr;
  TORCH_CHECK_VALUE(tensor->scalar_type() == type && tensor->sizes() == at::IntArrayRef({bs}) &&
                        tensor->is_contiguous(),
                    "draw_tokens expects ", name, " [", bs, "] of ", type, ", got ",
                    tensor->sizes(), " ", tensor->scalar_type());
  return tensor->const_data_ptr<T>();
}

struct DrawCall {
  const float *logits, *temperatures;
  const int64_t *seeds, *positions, *top_ks;
  const float *top_ps, *min_ps;
  int64_t nodes, columns;
  bool by_rank, marks_doubt;

  int64_t draw(int64_t r) const {
    const int64_t b = r / nodes;
    const float* logit = logits + r * columns;
    const Peak top = argmax_row(SerialGroup(), logit, columns);
    if (temperatures[b] <= 0) return top.column;
    const LogitRow row{logit, columns, temperatures[b], top.value / temperatures[b]};
    const uint32_t key = noise_key(seeds[b], positions[r]);
    const Restriction law{top_ks ? top_ks[b] : kNoTopK, top_ps ? top_ps[b] : 1.0f,
                          min_ps ? min_ps[b] : 0.0f};
    const Draw drawn = draw_row(row, key, law);
    return drawn_token(drawn, marks_doubt);
  }

 private:
  Draw draw_row(const LogitRow& row, uint32_t key, const Restriction& law) const {
    if (!law.applies()) return draw_by_column(SerialGroup(), row, key, KeepAll());
    thread_local Histogram histogram;
    if (!by_rank) return draw_restricted(SerialGroup(), row, key, law, marks_doubt, &histogram);
    thread_local std::vector<uint64_t> order;
    return draw_by_rank(row, key, law, marks_doubt, &histogram, order);
  }
};

at::Tensor launch_draw(const at::Tensor& logits, const at::Tensor& temperatures,
                       const at::Tensor& seeds, const at::Tensor& positions,
                       const std::optional<at::Tensor>& top_ks,
                       const std::optional<at::Tensor>& top_ps,
                       const std::optional<at::Tensor>& min_ps, bool by_rank, bool marks_doubt) {
  check_logits("draw_tokens", logits);
  const int64_t bs = logits.size(0), nodes = logits.size(1), columns = logits.size(2);
  check_int64("draw_tokens", "seeds", seeds, {bs});
  check_int64("draw_tokens", "positions", positions, {bs, nodes});
  const at::Tensor rows = logits.contiguous(), seed_row = seeds.contiguous(),
                   position_rows = positions.contiguous();
  const DrawCall call{rows.const_data_ptr<float>(),
                      values_of<float>("temperatures", temperatures, at::kFloat, bs),
                      seed_row.const_data_ptr<int64_t>(),
                      position_rows.const_data_ptr<int64_t>(),
                      values_of<int64_t>("top_ks", top_ks, at::kLong, bs),
                      values_of<float>("top_ps", top_ps, at::kFloat, bs),
                      values_of<float>("min_ps", min_ps, at::kFloat, bs),
                      nodes,
                      columns,
                      by_rank,
                      marks_doubt};
  at::Tensor tokens = at::empty({bs, nodes}, seeds.options());
  int64_t* token = tokens.mutable_data_ptr<int64_t>();
  for_each_item(bs * nodes, bs * nodes * columns >= kSerialColumns,
                [&](int64_t r) { token[r] = call.draw(r); });
  return tokens;
}

}  // namespace

TORCH_LIBRARY_IMPL(dflash2, CPU, m) {
  m.impl("greedy_tokens", launch_argmax);
  m.impl("draw_tokens", launch_draw);
}

}  // namespace dflash2
