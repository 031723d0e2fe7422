// What the engine needs to know about a tree: positions, visibility, links between the nodes.
#pragma once

#include <cstdint>

#include "group.h"

namespace dflash2 {

// One request's tree. A parent stands before its children; root and padding have parent -1.
struct TreeView {
  const int64_t *parents, *depths;  // [N]
  int num_nodes;                    // N, padding included
};

struct LayoutColumns {
  int64_t* positions;                   // [N]
  bool* mask;                           // [N, N], ancestor or self
  int64_t *first_child, *next_sibling;  // [N], -1 where there is none
};

// The lowest column behind `column` with that parent, or -1.
DFLASH2_INLINE int next_child(const TreeView& tree, int64_t parent, int column) {
  for (int i = column + 1; i < tree.num_nodes; ++i) {
    if (tree.parents[i] == parent) return i;
  }
  return -1;
}

template <typename Group>
DFLASH2_INLINE void lay_out_tree(const Group& group, const TreeView& tree, int64_t prefix_len,
                                 const LayoutColumns& out) {
  const int nodes = tree.num_nodes;
  for (int i = group.rank(); i < nodes; i += group.size()) {
    out.positions[i] = prefix_len + tree.depths[i];
    out.first_child[i] = next_child(tree, i, i);
    out.next_sibling[i] = tree.parents[i] < 0 ? -1 : next_child(tree, tree.parents[i], i);
    bool* sees = out.mask + int64_t(i) * nodes;
    for (int j = 0; j < nodes; ++j) sees[j] = false;
    for (int64_t j = i; j >= 0; j = tree.parents[j]) sees[j] = true;
  }
}

// A row of the mask in 64-bit words: bit j % 64 of word j / 64 is node j. `words` has
// ceil(N / 64) of them a node.
template <typename Group>
DFLASH2_INLINE void ancestor_bits(const Group& group, const TreeView& tree, uint64_t* words) {
  const int width = (tree.num_nodes + 63) / 64;
  for (int i = group.rank(); i < tree.num_nodes; i += group.size()) {
    uint64_t* row = words + int64_t(i) * width;
    for (int w = 0; w < width; ++w) row[w] = 0;
    for (int64_t j = i; j >= 0; j = tree.parents[j]) row[j / 64] |= uint64_t(1) << (j % 64);
  }
}

}  // namespace dflash2
