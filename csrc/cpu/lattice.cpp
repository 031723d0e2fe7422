// Launcher of core/lattice.h.
#include "../core/lattice.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <optional>

#include "../core/simd.h"
#include "parallel.h"
#include "tensors.h"
#include "types.h"

namespace dflash2 {
namespace {

constexpr int64_t kSerialWork = 1 << 18;  // multiplications; below, waking other threads costs more

void check_tokens(const char* name, const at::Tensor& tokens, int64_t vocabulary) {
  const int64_t* token = tokens.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < tokens.numel(); ++i) {
    TORCH_CHECK_INDEX(token[i] >= 0 && token[i] < vocabulary, "pair_scores expects ", name,
                      " below ", vocabulary, ", got ", token[i]);
  }
}

at::Tensor launch_pair_scores(const at::Tensor& gates, const at::Tensor& anchors,
                              const at::Tensor& candidates, const at::Tensor& unary,
                              const at::Tensor& predecessor_codebook,
                              const at::Tensor& successor_codebook,
                              const std::optional<at::Tensor>& temperatures) {
  TORCH_CHECK_VALUE(candidates.dim() == 3 && predecessor_codebook.dim() == 2,
                    "pair_scores expects candidates [bs, g, K] and codebooks [V, rank], got ",
                    candidates.sizes(), " and ", predecessor_codebook.sizes());
  const int64_t bs = candidates.size(0), positions = candidates.size(1), K = candidates.size(2);
  const int64_t vocabulary = predecessor_codebook.size(0), rank = predecessor_codebook.size(1);
  check_int64("pair_scores", "candidates", candidates, {bs, positions, K});
  check_int64("pair_scores", "anchors", anchors, {bs});
  TORCH_CHECK_VALUE(unary.scalar_type() == at::kFloat && unary.sizes() == candidates.sizes(),
                    "pair_scores expects float32 unary logits ", candidates.sizes(), ", got ",
                    unary.sizes(), " ", unary.scalar_type());
  TORCH_CHECK_VALUE(gates.sizes() == at::IntArrayRef({bs, positions, rank}) &&
                        gates.scalar_type() == predecessor_codebook.scalar_type() &&
                        successor_codebook.sizes() == predecessor_codebook.sizes() &&
                        successor_codebook.scalar_type() == gates.scalar_type() &&
                        successor_codebook.is_contiguous() && predecessor_codebook.is_contiguous(),
                    "pair_scores expects gates ", at::IntArrayRef({bs, positions, rank}),
                    " and two contiguous codebooks of one shape and dtype, got ", gates.sizes(),
                    " and ", successor_codebook.sizes());
  TORCH_CHECK_VALUE(!temperatures || (temperatures->sizes() == at::IntArrayRef({bs}) &&
                                      temperatures->scalar_type() == at::kFloat),
                    "pair_scores expects float32 temperatures [", bs, "]");
  const at::Tensor gate_rows = gates.contiguous(), anchor_row = anchors.contiguous(),
                   candidate_rows = candidates.contiguous(), unary_rows = unary.contiguous();
  const at::Tensor scale = temperatures ? temperatures->contiguous() : at::Tensor();
  check_tokens("anchors", anchor_row, vocabulary);
  check_tokens("candidates", candidate_rows, vocabulary);

  at::Tensor scores = at::empty({bs, positions, K, K}, unary.options());
  with_storage_type(gates, "pair_scores", [&](auto type) {
    using T = decltype(type);
    const int64_t* candidate = data_of<int64_t>(candidate_rows);
    const auto compute = [&](int64_t item) {
      const int64_t b = item / positions;
      const bool is_first = item % positions == 0;
      const PairView<T> view{
          data_of<T>(predecessor_codebook),
          data_of<T>(successor_codebook),
          data_of<T>(gate_rows) + item * rank,
          is_first ? data_of<int64_t>(anchor_row) + b : candidate + (item - 1) * K,
          is_first,
          candidate + item * K,
          data_of<float>(unary_rows) + item * K,
          rank,
          int(K)};
      float* out = scores.mutable_data_ptr<float>() + item * K * K;
      pair_scores<Lanes16>(SerialGroup(), view, out);
      if (scale.defined()) {
        const float temperature = data_of<float>(scale)[b];
        normalize_lattice(SerialGroup(), out, int(K), temperature > 0 ? temperature : 1.0f);
      }
    };
    for_each_item(bs * positions, bs * positions * K * K * rank >= kSerialWork, compute);
  });
  return scores;
}

}  // namespace

TORCH_LIBRARY_IMPL(dflash2, CPU, m) { m.impl("pair_scores", launch_pair_scores); }

}  // namespace dflash2
