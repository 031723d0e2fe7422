// Launchers of core/tree_build.h and core/tree_layout.h.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <tuple>
#include <vector>

#include "../core/tree_build.h"
#include "../core/tree_layout.h"
#include "tensors.h"

namespace dflash2 {
namespace {

using Tree = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

Tree launch_build(const at::Tensor& tokens, const at::Tensor& log_probs, const at::Tensor& anchors,
                  int64_t num_nodes, int64_t max_depth, int64_t max_children) {
  TORCH_CHECK_VALUE(tokens.dim() == 3 && tokens.scalar_type() == at::kLong,
                    "build_tree expects int64 tokens [bs, g, K], got ", tokens.sizes(), " ",
                    tokens.scalar_type());
  const int64_t bs = tokens.size(0), positions = tokens.size(1), candidates = tokens.size(2);
  TORCH_CHECK_VALUE(log_probs.sizes() == at::IntArrayRef({bs, positions, candidates, candidates}) &&
                        log_probs.scalar_type() == at::kFloat,
                    "build_tree expects float32 log_probs ",
                    at::IntArrayRef({bs, positions, candidates, candidates}), ", got ",
                    log_probs.sizes(), " ", log_probs.scalar_type());
  check_int64("build_tree", "anchors", anchors, {bs});
  TORCH_CHECK_VALUE(num_nodes >= 1 && max_depth >= 0 && max_depth <= positions && max_children >= 1,
                    "build_tree expects num_nodes >= 1, 0 <= max_depth <= ", positions,
                    " and max_children >= 1, got ", num_nodes, ", ", max_depth, " and ",
                    max_children);
  TORCH_CHECK_VALUE(max_depth == 0 || candidates > 0, "build_tree expects at least one candidate");

  const at::Tensor token_rows = tokens.contiguous(), anchor_row = anchors.contiguous();
  const Tree tree{
      at::empty({bs, num_nodes}, tokens.options()), at::empty({bs, num_nodes}, tokens.options()),
      at::empty({bs, num_nodes}, tokens.options()), at::empty({bs, num_nodes}, log_probs.options()),
      at::empty({bs}, tokens.options())};
  const auto& [out_tokens, parents, depths, log_values, counts] = tree;
  const TreeLimits limits{int(num_nodes), int(max_depth), int(std::min(max_children, candidates))};
  const SerialGroup group;
  std::vector<GrowingNode<double>> nodes(num_nodes);
  for (int64_t b = 0; b < bs; ++b) {
    const LatticeView lattice{token_rows.const_data_ptr<int64_t>() + b * positions * candidates,
                              log_probs.const_data_ptr<float>() + b * log_probs.stride(0),
                              log_probs.stride(1),
                              log_probs.stride(2),
                              log_probs.stride(3),
                              int(candidates),
                              anchor_row.const_data_ptr<int64_t>()[b]};
    const int64_t row = b * num_nodes;
    TreeBuilder<SerialGroup, double>(group, lattice, limits, nodes.data())
        .build({out_tokens.mutable_data_ptr<int64_t>() + row,
                parents.mutable_data_ptr<int64_t>() + row, depths.mutable_data_ptr<int64_t>() + row,
                log_values.mutable_data_ptr<float>() + row,
                counts.mutable_data_ptr<int64_t>() + b});
  }
  return tree;
}

// The core follows parents without looking.
void check_parents(const char* name, const at::Tensor& parents) {
  const int64_t nodes = parents.size(1);
  const int64_t* parent = parents.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < parents.numel(); ++i) {
    TORCH_CHECK_VALUE(parent[i] >= -1 && parent[i] < i % nodes, name,
                      " expects a parent in a column before its child's or -1, got ", parent[i],
                      " in column ", i % nodes);
  }
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> launch_layout(
    const at::Tensor& parents, const at::Tensor& depths, const at::Tensor& prefix_lens) {
  TORCH_CHECK_VALUE(parents.dim() == 2, "tree_layout expects parents [bs, N], got ",
                    parents.sizes());
  const int64_t bs = parents.size(0), nodes = parents.size(1);
  check_int64("tree_layout", "parents", parents, {bs, nodes});
  check_int64("tree_layout", "depths", depths, {bs, nodes});
  check_int64("tree_layout", "prefix_lens", prefix_lens, {bs});
  const at::Tensor parent_rows = parents.contiguous(), depth_rows = depths.contiguous(),
                   prefix_row = prefix_lens.contiguous();
  check_parents("tree_layout", parent_rows);

  at::Tensor positions = at::empty({bs, nodes}, parents.options());
  at::Tensor mask = at::empty({bs, nodes, nodes}, parents.options().dtype(at::kBool));
  at::Tensor first_child = at::empty({bs, nodes}, parents.options());
  at::Tensor next_sibling = at::empty({bs, nodes}, parents.options());
  for (int64_t b = 0; b < bs; ++b) {
    const int64_t row = b * nodes;
    lay_out_tree(
        SerialGroup(),
        TreeView{parent_rows.const_data_ptr<int64_t>() + row,
                 depth_rows.const_data_ptr<int64_t>() + row, int(nodes)},
        prefix_row.const_data_ptr<int64_t>()[b],
        {positions.mutable_data_ptr<int64_t>() + row, mask.mutable_data_ptr<bool>() + row * nodes,
         first_child.mutable_data_ptr<int64_t>() + row,
         next_sibling.mutable_data_ptr<int64_t>() + row});
  }
  return {positions, mask, first_child, next_sibling};
}

at::Tensor launch_bits(const at::Tensor& parents) {
  TORCH_CHECK_VALUE(parents.dim() == 2, "ancestor_bits expects parents [bs, N], got ",
                    parents.sizes());
  const int64_t bs = parents.size(0), nodes = parents.size(1), width = (nodes + 63) / 64;
  check_int64("ancestor_bits", "parents", parents, {bs, nodes});
  const at::Tensor parent_rows = parents.contiguous();
  check_parents("ancestor_bits", parent_rows);
  at::Tensor words = at::empty({bs, nodes, width}, parents.options());
  for (int64_t b = 0; b < bs; ++b) {
    ancestor_bits(
        SerialGroup(),
        TreeView{parent_rows.const_data_ptr<int64_t>() + b * nodes, nullptr, int(nodes)},
        reinterpret_cast<uint64_t*>(words.mutable_data_ptr<int64_t>()) + b * nodes * width);
  }
  return words;
}

}  // namespace

TORCH_LIBRARY_IMPL(dflash2, CPU, m) {
  m.impl("build_tree", launch_build);
  m.impl("tree_layout", launch_layout);
  m.impl("ancestor_bits", launch_bits);
}

}  // namespace dflash2
