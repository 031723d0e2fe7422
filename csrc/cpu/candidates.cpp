// Launcher of core/noisy_candidates.h.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

#include "../core/best_columns.h"
#include "../core/noisy_candidates.h"
#include "parallel.h"
#include "tensors.h"

namespace dflash2 {
namespace {

constexpr int64_t kSerialColumns = 1 << 14;  // below, waking other threads costs more

using Candidates = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

void check_float(const char* name, const at::Tensor& tensor, int64_t bs) {
  TORCH_CHECK_VALUE(tensor.scalar_type() == at::kFloat && tensor.sizes() == at::IntArrayRef({bs}),
                    "noisy_candidates expects float32 ", name, " [", bs, "], got ", tensor.sizes(),
                    " ", tensor.scalar_type());
}

Candidates launch_candidates(const at::Tensor& unary_logits, const at::Tensor& scale,
                             const at::Tensor& weight, const at::Tensor& seeds,
                             const at::Tensor& positions, const std::optional<at::Tensor>& top_ks,
                             const std::optional<at::Tensor>& top_ps,
                             const std::optional<at::Tensor>& min_ps, int64_t num_inside,
                             int64_t num_others) {
  TORCH_CHECK_VALUE(unary_logits.dim() == 3 && unary_logits.scalar_type() == at::kFloat,
                    "noisy_candidates expects float32 logits [bs, g, V], got ",
                    unary_logits.sizes(), " ", unary_logits.scalar_type());
  const int64_t bs = unary_logits.size(0), g = unary_logits.size(1), V = unary_logits.size(2);
  TORCH_CHECK_VALUE(num_inside >= 1 && num_others >= 0 && num_inside + num_others <= V,
                    "noisy_candidates expects num_inside >= 1 and num_others >= 0 that fit into ",
                    V, " columns, got ", num_inside, " and ", num_others);
  check_float("scale", scale, bs);
  check_float("weight", weight, bs);
  check_int64("noisy_candidates", "seeds", seeds, {bs});
  check_int64("noisy_candidates", "positions", positions, {bs, g});
  if (top_ks) check_int64("noisy_candidates", "top_ks", *top_ks, {bs});
  if (top_ps) check_float("top_ps", *top_ps, bs);
  if (min_ps) check_float("min_ps", *min_ps, bs);
  const at::Tensor rows = unary_logits.contiguous(), scales = scale.contiguous(),
                   weights = weight.contiguous(), seed_row = seeds.contiguous(),
                   position_rows = positions.contiguous();
  const auto kept = [](const std::optional<at::Tensor>& law) {
    return law ? law->contiguous() : at::Tensor();
  };
  const at::Tensor ks = kept(top_ks), ps = kept(top_ps), ms = kept(min_ps);

  const int64_t W = num_inside + num_others;
  const Candidates out{
      at::empty({bs, g, W}, seeds.options()), at::empty({bs, g, W}, unary_logits.options()),
      at::empty({bs, g, W}, unary_logits.options()), at::empty({bs, g, W}, unary_logits.options())};
  const auto& [tokens, logits, log_q, noise] = out;
  const auto find = [&](int64_t item) {
    const int64_t b = item / g;
    const float* logit = rows.const_data_ptr<float>() + item * V;
    const float temperature = scales.const_data_ptr<float>()[b];
    const Peak top = argmax_row(SerialGroup(), logit, V);
    const LogitRow row{logit, V, temperature, top.value / temperature};
    const uint32_t key = noise_key(seed_row.const_data_ptr<int64_t>()[b],
                                   position_rows.const_data_ptr<int64_t>()[item]);
    const Restriction law{ks.defined() ? ks.const_data_ptr<int64_t>()[b] : kNoTopK,
                          ps.defined() ? ps.const_data_ptr<float>()[b] : 1.0f,
                          ms.defined() ? ms.const_data_ptr<float>()[b] : 0.0f};
    thread_local Histogram histogram;
    const SerialGroup group;
    const CandidateSearch<BestColumns> search(group, row, key, weights.const_data_ptr<float>()[b]);
    BestColumns inside(num_inside), others(num_others);
    find_candidates(
        search, row, group, law, &histogram, inside, others, W,
        {tokens.mutable_data_ptr<int64_t>() + item * W, logits.mutable_data_ptr<float>() + item * W,
         log_q.mutable_data_ptr<float>() + item * W, noise.mutable_data_ptr<float>() + item * W});
  };
  for_each_item(bs * g, rows.numel() >= kSerialColumns, find);
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(dflash2, CPU, m) { m.impl("noisy_candidates", launch_candidates); }

}  // namespace dflash2
