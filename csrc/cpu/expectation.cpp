// Tokens that the first nodes of draft trees are expected to bring (kernels/expectation.py).
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tensors.h"

namespace dflash2 {
namespace {

struct Worth {
  const double *log_edges, *factors;  // [sizes - 1], [bs, depths, sizes]
  int64_t depths, sizes;

  double chance(int64_t request, int64_t depth, double log_value) const {
    const int64_t size = std::lower_bound(log_edges, log_edges + sizes - 1, log_value) - log_edges;
    return std::min(1.0, std::exp(log_value) * factors[(request * depths + depth) * sizes + size]);
  }
};

void check_doubles(const char* name, const at::Tensor& tensor, int64_t dim) {
  TORCH_CHECK_VALUE(
      tensor.scalar_type() == at::kDouble && tensor.dim() == dim && tensor.is_contiguous(),
      "expected_tokens expects contiguous float64 ", name, " of ", dim, " dimensions, got ",
      tensor.sizes(), " ", tensor.scalar_type());
}

// Running sums over a request's nodes, `sums` [nodes]; those beyond its bounds add nothing.
void sum_chances(const Worth& worth, int64_t request, const float* log_values,
                 const int64_t* depths, int64_t nodes, const int64_t* bounds, double* sums) {
  double tokens = 1.0;
  for (int64_t node = 0; node < nodes; ++node) {
    TORCH_CHECK_INDEX(depths[node] >= 0 && depths[node] < worth.depths, "expected_tokens: depth ",
                      depths[node], " is not between 0 and ", worth.depths - 1);
    const bool is_allowed = node < bounds[0] && depths[node] <= bounds[1];
    if (node > 0 && is_allowed) tokens += worth.chance(request, depths[node], log_values[node]);
    sums[node] = tokens;
  }
}

at::Tensor launch_expected_tokens(const at::Tensor& log_values, const at::Tensor& depths,
                                  const at::Tensor& log_edges, const at::Tensor& factors,
                                  const at::Tensor& bounds, const at::Tensor& counts) {
  TORCH_CHECK_VALUE(
      log_values.scalar_type() == at::kFloat && log_values.dim() == 2 && log_values.size(1) > 0,
      "expected_tokens expects float32 log_values [bs, N >= 1], got ", log_values.sizes(), " ",
      log_values.scalar_type());
  const int64_t bs = log_values.size(0), nodes = log_values.size(1), widths = counts.numel();
  check_int64("expected_tokens", "depths", depths, {bs, nodes});
  check_int64("expected_tokens", "bounds", bounds, {bs, 2});
  check_int64("expected_tokens", "counts", counts, {widths});
  check_doubles("log_edges", log_edges, 1);
  check_doubles("factors", factors, 3);
  TORCH_CHECK_VALUE(factors.size(0) == bs && factors.size(2) == log_edges.size(0) + 1,
                    "expected_tokens expects factors [", bs, ", D + 1, ", log_edges.size(0) + 1,
                    "], got ", factors.sizes());
  const Worth worth{log_edges.const_data_ptr<double>(), factors.const_data_ptr<double>(),
                    factors.size(1), factors.size(2)};
  const at::Tensor value_rows = log_values.contiguous(), depth_rows = depths.contiguous(),
                   bound_rows = bounds.contiguous(), last = counts.contiguous();
  const int64_t* count = last.const_data_ptr<int64_t>();
  for (int64_t w = 0; w < widths; ++w) {
    TORCH_CHECK_INDEX(count[w] >= 1, "expected_tokens: a count of ", count[w], " nodes");
  }
  at::Tensor tokens = at::empty({bs, widths}, factors.options());
  double* token = tokens.mutable_data_ptr<double>();
  std::vector<double> sums(nodes);
  for (int64_t request = 0; request < bs; ++request) {
    sum_chances(worth, request, value_rows.const_data_ptr<float>() + request * nodes,
                depth_rows.const_data_ptr<int64_t>() + request * nodes, nodes,
                bound_rows.const_data_ptr<int64_t>() + 2 * request, sums.data());
    for (int64_t w = 0; w < widths; ++w) {
      token[request * widths + w] = sums[std::min(count[w], nodes) - 1];
    }
  }
  return tokens;
}

}  // namespace

TORCH_LIBRARY_IMPL(dflash2, CPU, m) { m.impl("expected_tokens", launch_expected_tokens); }

}  // namespace dflash2
