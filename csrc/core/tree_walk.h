// From the target's tokens to the accepted path, and from the path to what has to be moved.
#pragma once

#include <cstdint>

#include "group.h"

namespace dflash2 {

struct WalkView {
  const int64_t *tokens, *parents, *target_tokens;  // [N]
  int num_nodes, max_depth;
};

struct VerdictColumns {
  int64_t *node_path, *tokens;  // [max_depth + 1]
  int64_t *accept_len, *bonus;  // one each
};

struct Lowest {
  DFLASH2_INLINE int operator()(int a, int b) const { return a < b ? a : b; }
};

// Follows the child that carries the target's token until there is none.
template <typename Group>
DFLASH2_INLINE void walk_tree(const Group& group, const WalkView& tree, const VerdictColumns& out) {
  int node = 0, length = 0;
  int64_t emitted = 0;
  while (node < tree.num_nodes) {
    emitted = tree.target_tokens[node];
    if (group.rank() == 0) {
      out.node_path[length] = node;
      out.tokens[length] = emitted;
    }
    if (++length > tree.max_depth) break;
    int child = tree.num_nodes;
    for (int i = node + 1 + group.rank(); i < tree.num_nodes; i += group.size()) {
      if (tree.parents[i] == node && tree.tokens[i] == emitted && i < child) child = i;
    }
    node = group.reduce(child, Lowest());
  }
  for (int i = length + group.rank(); i <= tree.max_depth; i += group.size()) {
    out.node_path[i] = -1;
    out.tokens[i] = 0;
  }
  if (group.rank() == 0) {
    *out.accept_len = length;
    *out.bonus = emitted;
  }
}

struct CommitView {
  const int64_t* node_path;  // [length], -1 behind the accepted path
  const int64_t* slots;      // [>= N and >= length] KV slots of the window
  int64_t prefix_len;
  int64_t first_row;  // of the request in the batch of all nodes
  int length;
};

struct CommitColumns {
  int64_t *targets, *sources;                 // [length] KV moves; equal where there is none
  int64_t *rows, *positions, *context_slots;  // [length]
  int64_t* new_len;                           // one
};

struct Sum {
  DFLASH2_INLINE int operator()(int a, int b) const { return a + b; }
};

// The accepted path gets consecutive slots; a row that was not accepted moves onto itself, and its
// hidden state goes to slot 0, where nobody reads.
template <typename Group>
DFLASH2_INLINE void commit_path(const Group& group, const CommitView& step,
                                const CommitColumns& out) {
  int accepted = 0;
  for (int i = group.rank(); i < step.length; i += group.size()) {
    const int64_t node = step.node_path[i];
    const bool is_accepted = node >= 0;
    accepted += is_accepted;
    out.targets[i] = step.slots[i];
    out.sources[i] = step.slots[is_accepted ? node : i];
    out.rows[i] = step.first_row + (is_accepted ? node : 0);
    out.positions[i] = step.prefix_len + i;
    out.context_slots[i] = is_accepted ? step.slots[i] : 0;
  }
  accepted = group.reduce(accepted, Sum());
  if (group.rank() == 0) *out.new_len = step.prefix_len + accepted;
}

}  // namespace dflash2
