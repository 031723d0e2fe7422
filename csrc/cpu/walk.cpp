// Launchers of core/tree_walk.h.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <tuple>

#include "../core/tree_walk.h"
#include "tensors.h"

namespace dflash2 {
namespace {

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> launch_walk(
    const at::Tensor& tokens, const at::Tensor& parents, const at::Tensor& /* depths */,
    const at::Tensor& target_tokens, int64_t max_depth) {
  TORCH_CHECK_VALUE(tokens.dim() == 2 && tokens.size(1) > 0 && max_depth >= 0,
                    "walk_tree expects tokens [bs, N >= 1] and max_depth >= 0, got ",
                    tokens.sizes(), " and ", max_depth);
  const int64_t bs = tokens.size(0), nodes = tokens.size(1), length = max_depth + 1;
  check_int64("walk_tree", "tokens", tokens, {bs, nodes});
  check_int64("walk_tree", "parents", parents, {bs, nodes});
  check_int64("walk_tree", "target_tokens", target_tokens, {bs, nodes});
  const at::Tensor token_rows = tokens.contiguous(), parent_rows = parents.contiguous(),
                   target_rows = target_tokens.contiguous();
  at::Tensor node_path = at::empty({bs, length}, tokens.options());
  at::Tensor accept_lens = at::empty({bs}, tokens.options());
  at::Tensor delivered = at::empty({bs, length}, tokens.options());
  at::Tensor bonus = at::empty({bs}, tokens.options());
  for (int64_t b = 0; b < bs; ++b) {
    const int64_t row = b * nodes;
    walk_tree(SerialGroup(),
              WalkView{token_rows.const_data_ptr<int64_t>() + row,
                       parent_rows.const_data_ptr<int64_t>() + row,
                       target_rows.const_data_ptr<int64_t>() + row, int(nodes), int(max_depth)},
              {node_path.mutable_data_ptr<int64_t>() + b * length,
               delivered.mutable_data_ptr<int64_t>() + b * length,
               accept_lens.mutable_data_ptr<int64_t>() + b, bonus.mutable_data_ptr<int64_t>() + b});
  }
  return {node_path, accept_lens, delivered, bonus};
}

using Moves = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

Moves launch_commit(const at::Tensor& node_path, const at::Tensor& slots,
                    const at::Tensor& prefix_lens, int64_t num_nodes) {
  TORCH_CHECK_VALUE(node_path.dim() == 2 && slots.dim() == 2,
                    "commit_path expects node_path [bs, L] and slots [bs, W], got ",
                    node_path.sizes(), " and ", slots.sizes());
  const int64_t bs = node_path.size(0), length = node_path.size(1), width = slots.size(1);
  check_int64("commit_path", "node_path", node_path, {bs, length});
  check_int64("commit_path", "slots", slots, {bs, width});
  check_int64("commit_path", "prefix_lens", prefix_lens, {bs});
  TORCH_CHECK_VALUE(width >= num_nodes && width >= length, "commit_path expects slots for ",
                    num_nodes, " nodes and ", length, " accepted tokens, got ", width);
  const at::Tensor paths = node_path.contiguous(), slot_rows = slots.contiguous(),
                   prefix_row = prefix_lens.contiguous();
  const int64_t* nodes = paths.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < bs * length; ++i) {
    TORCH_CHECK_VALUE(nodes[i] >= -1 && nodes[i] < num_nodes, "commit_path expects nodes below ",
                      num_nodes, " or -1, got ", nodes[i]);
  }

  const auto column = [&] { return at::empty({bs * length}, paths.options()); };
  const Moves moves{column(), column(), column(),
                    column(), column(), at::empty({bs}, paths.options())};
  const auto& [targets, sources, rows, positions, context_slots, new_lens] = moves;
  for (int64_t b = 0; b < bs; ++b) {
    const int64_t at = b * length;
    commit_path(
        SerialGroup(),
        CommitView{nodes + at, slot_rows.const_data_ptr<int64_t>() + b * width,
                   prefix_row.const_data_ptr<int64_t>()[b], b * num_nodes, int(length)},
        {targets.mutable_data_ptr<int64_t>() + at, sources.mutable_data_ptr<int64_t>() + at,
         rows.mutable_data_ptr<int64_t>() + at, positions.mutable_data_ptr<int64_t>() + at,
         context_slots.mutable_data_ptr<int64_t>() + at, new_lens.mutable_data_ptr<int64_t>() + b});
  }
  return moves;
}

}  // namespace

TORCH_LIBRARY_IMPL(dflash2, CPU, m) {
  m.impl("walk_tree", launch_walk);
  m.impl("commit_path", launch_commit);
}

}  // namespace dflash2
