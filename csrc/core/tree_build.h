// The N most valuable nodes of a candidate lattice: exact best-first search.
//
// A node's value is the sum of the edges along its path and never grows along it, so the best node
// that is not yet in the tree is a child of one that is. Every node of the tree therefore keeps one
// offer, its best child that has not been taken; N times the best offer is taken. Finding an offer
// is a reduction over K edges, choosing among offers one over at most N nodes: no queue, no memory
// beyond the nodes, and the same tree on every backend, ties included.
#pragma once

#include <cstdint>

#include "group.h"

namespace dflash2 {

constexpr int kNoCandidate = 0x7fffffff;

// The lattice and the limits of one request. An edge of minus infinity or NaN is never taken.
struct LatticeView {
  const int64_t* tokens;   // [g, K]
  const float* log_probs;  // [g, K, K]: position, predecessor, candidate
  int64_t position_stride, predecessor_stride, candidate_stride;
  int candidates;  // K
  int64_t anchor;
};

struct TreeLimits {
  int num_nodes, max_depth, max_children;
};

// One request's columns of the result.
struct TreeColumns {
  int64_t *tokens, *parents, *depths;  // [N]
  float* log_values;                   // [N]
  int64_t* num_nodes;
};

// What a node of the tree has to offer next. `Value` is the type in which values are summed.
template <typename Value>
struct Offer {
  Value value;    // of the child
  int candidate;  // kNoCandidate: nothing left
  int depth;      // of the child
  int parent;     // column
};

// A column while the tree grows.
template <typename Value>
struct GrowingNode {
  Value value;
  Offer<Value> offer;
  int candidate, depth, children_taken;
};

struct Edge {
  float log_prob;
  int candidate;
};

struct BetterEdge {
  DFLASH2_INLINE bool before(Edge a, Edge b) const {
    return a.log_prob > b.log_prob || (a.log_prob == b.log_prob && a.candidate < b.candidate);
  }
  DFLASH2_INLINE Edge operator()(Edge a, Edge b) const {
    if (a.candidate == kNoCandidate) return b;
    if (b.candidate == kNoCandidate) return a;
    return before(b, a) ? b : a;
  }
};

// The order of the tree: value, then depth, candidate and the parent's column.
template <typename Value>
struct BetterOffer {
  DFLASH2_INLINE Offer<Value> operator()(Offer<Value> a, Offer<Value> b) const {
    if (a.candidate == kNoCandidate) return b;
    if (b.candidate == kNoCandidate) return a;
    if (a.value != b.value) return a.value > b.value ? a : b;
    if (a.depth != b.depth) return a.depth < b.depth ? a : b;
    if (a.candidate != b.candidate) return a.candidate < b.candidate ? a : b;
    return a.parent < b.parent ? a : b;
  }
};

template <typename Group, typename Value>
class TreeBuilder {
 public:
  using Node = GrowingNode<Value>;

  // `nodes` holds limits.num_nodes nodes in memory that the group shares.
  DFLASH2_INLINE TreeBuilder(const Group& group, const LatticeView& lattice,
                             const TreeLimits& limits, Node* nodes)
      : group_(group), lattice_(lattice), limits_(limits), nodes_(nodes) {}

  DFLASH2_INLINE void build(const TreeColumns& out) {
    int count = 0;
    take({Value(0), 0, 0, -1}, count++, out);
    while (count < limits_.num_nodes) {
      const Offer<Value> best = best_offer(count);
      if (best.candidate == kNoCandidate) break;
      take(best, count, out);
      // The edge just taken, read again: it tells where among its siblings the parent stands.
      offer_next(best.parent, {edge(best.parent, best.candidate), best.candidate});
      ++count;
    }
    pad(count, out);
  }

 private:
  DFLASH2_INLINE float edge(int node, int candidate) const {
    return lattice_.log_probs[nodes_[node].depth * lattice_.position_stride +
                              nodes_[node].candidate * lattice_.predecessor_stride +
                              candidate * lattice_.candidate_stride];
  }

  DFLASH2_INLINE void take(const Offer<Value>& offer, int column, const TreeColumns& out) {
    if (group_.rank() == 0) {
      Node& node = nodes_[column];
      node.value = offer.value;
      node.candidate = offer.candidate;
      node.depth = offer.depth;
      node.children_taken = 0;
      if (offer.parent >= 0) ++nodes_[offer.parent].children_taken;
      out.tokens[column] =
          offer.depth == 0
              ? lattice_.anchor
              : lattice_.tokens[(offer.depth - 1) * lattice_.candidates + offer.candidate];
      out.parents[column] = offer.parent;
      out.depths[column] = offer.depth;
      out.log_values[column] = float(offer.value);
    }
    group_.barrier();
    offer_next(column, {0.0f, kNoCandidate});
  }

  // Puts the best child behind `taken` (kNoCandidate: the best of all) on offer.
  DFLASH2_INLINE void offer_next(int column, Edge taken) {
    const Node& node = nodes_[column];
    Edge best = {0.0f, kNoCandidate};
    if (node.depth < limits_.max_depth && node.children_taken < limits_.max_children) {
      const BetterEdge better;
      Edge mine = best;
      for (int c = group_.rank(); c < lattice_.candidates; c += group_.size()) {
        const Edge next = {edge(column, c), c};
        const bool possible = next.log_prob > -__builtin_inff();  // NaN is not
        const bool behind = taken.candidate == kNoCandidate || better.before(taken, next);
        if (possible && behind) mine = better(mine, next);
      }
      best = group_.reduce(mine, better);
    }
    if (group_.rank() == 0) {
      nodes_[column].offer = {node.value + Value(best.log_prob), best.candidate, node.depth + 1,
                              column};
    }
    group_.barrier();
  }

  DFLASH2_INLINE Offer<Value> best_offer(int count) const {
    const BetterOffer<Value> better;
    Offer<Value> mine = {Value(0), kNoCandidate, 0, 0};
    for (int i = group_.rank(); i < count; i += group_.size()) {
      mine = better(mine, nodes_[i].offer);
    }
    return group_.reduce(mine, better);
  }

  DFLASH2_INLINE void pad(int count, const TreeColumns& out) const {
    for (int i = count + group_.rank(); i < limits_.num_nodes; i += group_.size()) {
      out.tokens[i] = lattice_.anchor;
      out.parents[i] = -1;
      out.depths[i] = 0;
      out.log_values[i] = -__builtin_inff();
    }
    if (group_.rank() == 0) *out.num_nodes = count;
  }

  const Group& group_;
  const LatticeView& lattice_;
  const TreeLimits limits_;
  Node* const nodes_;
};

}  // namespace dflash2
