// The kernels that accelerators launch, one a function, the same for CUDA and SYCL. A prelude
// (cuda/prelude.cuh, xpu/prelude.hpp) brings
//
//   DFLASH2_KERNEL             what marks a kernel;
//   SubGroup, WorkGroup        groups as in core/group.h: some threads of a work-group, all of it;
//   work_item()                index of the calling work-group;
//   DFLASH2_SHARED(T, name)    memory of type T that a work-group shares.
//
// Arguments are pointers, 64-bit integers and floats. Every tensor is contiguous unless its strides
// are arguments. A work-group of the tree kernels is one sub-group; the others may have any number.
#pragma once

#include "argmax.h"
#include "convolution.h"
#include "draw.h"
#include "draw_by_rank_shared.h"
#include "kv_column.h"
#include "lattice.h"
#include "noisy_candidates.h"
#include "shared_columns.h"
#include "tree_build.h"
#include "tree_layout.h"
#include "tree_walk.h"

namespace dflash2 {
constexpr int kMaxDeviceNodes = 256;
}  // namespace dflash2

using namespace dflash2;

// One sub-group a request.
DFLASH2_KERNEL void dflash2_build_tree(const int64_t* tokens, const float* log_probs,
                                       const int64_t* anchors, int64_t request_stride,
                                       int64_t position_stride, int64_t predecessor_stride,
                                       int64_t candidate_stride, int64_t positions, int64_t K,
                                       int64_t nodes, int64_t max_depth, int64_t max_children,
                                       int64_t* out_tokens, int64_t* parents, int64_t* depths,
                                       float* log_values, int64_t* counts) {
  struct Nodes {
    GrowingNode<double> at[kMaxDeviceNodes];
  };
  DFLASH2_SHARED(Nodes, growing);
  const SubGroup group;
  const int64_t b = work_item(), row = b * nodes;
  const LatticeView lattice = {tokens + b * positions * K,
                               log_probs + b * request_stride,
                               position_stride,
                               predecessor_stride,
                               candidate_stride,
                               int(K),
                               anchors[b]};
  const TreeLimits limits = {int(nodes), int(max_depth), int(max_children)};
  TreeBuilder<SubGroup, double>(group, lattice, limits, growing->at)
      .build({out_tokens + row, parents + row, depths + row, log_values + row, counts + b});
}

// One sub-group a request.
DFLASH2_KERNEL void dflash2_tree_layout(const int64_t* parents, const int64_t* depths,
                                        const int64_t* prefix_lens, int64_t nodes,
                                        int64_t* positions, bool* mask, int64_t* first_child,
                                        int64_t* next_sibling) {
  const int64_t b = work_item(), row = b * nodes;
  const TreeView tree = {parents + row, depths + row, int(nodes)};
  lay_out_tree(SubGroup(), tree, prefix_lens[b],
               {positions + row, mask + row * nodes, first_child + row, next_sibling + row});
}

// One sub-group a request.
DFLASH2_KERNEL void dflash2_ancestor_bits(const int64_t* parents, int64_t nodes, int64_t* words) {
  const int64_t b = work_item(), width = (nodes + 63) / 64;
  const TreeView tree = {parents + b * nodes, nullptr, int(nodes)};
  ancestor_bits(SubGroup(), tree, reinterpret_cast<uint64_t*>(words) + b * nodes * width);
}

// One sub-group a request.
DFLASH2_KERNEL void dflash2_walk_tree(const int64_t* tokens, const int64_t* parents,
                                      const int64_t* target_tokens, int64_t nodes,
                                      int64_t max_depth, int64_t* node_path, int64_t* accept_lens,
                                      int64_t* delivered, int64_t* bonus) {
  const int64_t b = work_item(), row = b * nodes, out = b * (max_depth + 1);
  const WalkView tree = {tokens + row, parents + row, target_tokens + row, int(nodes),
                         int(max_depth)};
  walk_tree(SubGroup(), tree, {node_path + out, delivered + out, accept_lens + b, bonus + b});
}

// One sub-group a request.
DFLASH2_KERNEL void dflash2_commit_path(const int64_t* node_path, const int64_t* slots,
                                        const int64_t* prefix_lens, int64_t length, int64_t width,
                                        int64_t nodes, int64_t* targets, int64_t* sources,
                                        int64_t* rows, int64_t* positions, int64_t* context_slots,
                                        int64_t* new_lens) {
  const int64_t b = work_item(), at = b * length;
  const CommitView step = {node_path + at, slots + b * width, prefix_lens[b], b * nodes,
                           int(length)};
  commit_path(
      SubGroup(), step,
      {targets + at, sources + at, rows + at, positions + at, context_slots + at, new_lens + b});
}

// One work-group a row.
DFLASH2_KERNEL void dflash2_greedy_tokens(const float* logits, int64_t columns, int64_t* tokens) {
  const WorkGroup group;
  const Peak peak = argmax_row(group, logits + work_item() * columns, columns);
  if (group.rank() == 0) tokens[work_item()] = peak.column;
}

DFLASH2_INLINE Restriction law_of(const int64_t* top_ks, const float* top_ps, const float* min_ps,
                                  int64_t b) {
  return {top_ks == nullptr ? kNoTopK : top_ks[b], top_ps == nullptr ? 1.0f : top_ps[b],
          min_ps == nullptr ? 0.0f : min_ps[b]};
}

// One work-group a row. top_ks, top_ps and min_ps may be null.
DFLASH2_KERNEL void dflash2_draw_tokens(const float* logits, const float* temperatures,
                                        const int64_t* seeds, const int64_t* positions,
                                        const int64_t* top_ks, const float* top_ps,
                                        const float* min_ps, int64_t nodes, int64_t columns,
                                        int64_t noise_by_rank, int64_t marks_doubt,
                                        int64_t* tokens) {
  DFLASH2_SHARED(Histogram, histogram);
  DFLASH2_SHARED(RankRun, run);
  const WorkGroup group;
  const int64_t r = work_item(), b = r / nodes;
  const float* logit = logits + r * columns;
  const Peak top = argmax_row(group, logit, columns);
  int64_t token = top.column;
  if (temperatures[b] > 0.0f) {
    const LogitRow row = {logit, columns, temperatures[b], top.value / temperatures[b]};
    const uint32_t key = noise_key(seeds[b], positions[r]);
    const Restriction law = law_of(top_ks, top_ps, min_ps, b);
    const bool is_careful = marks_doubt != 0;
    Draw drawn = no_draw();
    if (!law.applies()) {
      drawn = draw_by_column(group, row, key, KeepAll());
    } else if (noise_by_rank != 0) {
      drawn = RankedDraw<WorkGroup>(group, row, key, histogram, run).draw(law, is_careful);
    } else {
      drawn = draw_restricted(group, row, key, law, is_careful, histogram);
    }
    token = drawn_token(drawn, is_careful);
  }
  if (group.rank() == 0) tokens[r] = token;
}

// One work-group a position. top_ks, top_ps and min_ps may be null.
DFLASH2_KERNEL void dflash2_noisy_candidates(const float* logits, const float* scale,
                                             const float* weight, const int64_t* seeds,
                                             const int64_t* draw_positions, const int64_t* top_ks,
                                             const float* top_ps, const float* min_ps,
                                             int64_t positions, int64_t columns, int64_t num_inside,
                                             int64_t num_others, int64_t* tokens,
                                             float* unary_logits, float* log_q, float* noise) {
  DFLASH2_SHARED(Histogram, histogram);
  DFLASH2_SHARED(ColumnBuffer, buffer);
  DFLASH2_SHARED(BestList, best_inside);
  DFLASH2_SHARED(BestList, best_others);
  const WorkGroup group;
  const int64_t item = work_item(), b = item / positions, width = num_inside + num_others;
  const float* logit = logits + item * columns;
  const Peak top = argmax_row(group, logit, columns);
  const LogitRow row = {logit, columns, scale[b], top.value / scale[b]};
  using Best = SharedBestColumns<WorkGroup>;
  Best inside(group, num_inside, buffer, best_inside);
  Best others(group, num_others, buffer, best_others);
  const CandidateSearch<Best> search(group, row, noise_key(seeds[b], draw_positions[item]),
                                     weight[b]);
  find_candidates(search, row, group, law_of(top_ks, top_ps, min_ps, b), histogram, inside, others,
                  width,
                  {tokens + item * width, unary_logits + item * width, log_q + item * width,
                   noise + item * width});
}

// One work-group a position. temperatures may be null.
template <typename T>
DFLASH2_INLINE void pair_scores_kernel(const T* gates, const int64_t* anchors,
                                       const int64_t* candidates, const float* unary,
                                       const T* predecessor_codebook, const T* successor_codebook,
                                       const float* temperatures, int64_t positions, int64_t K,
                                       int64_t rank, float* scores) {
  const WorkGroup group;
  const int64_t item = work_item(), b = item / positions;
  const bool is_first = item % positions == 0;
  const PairView<T> view = {predecessor_codebook,
                            successor_codebook,
                            gates + item * rank,
                            is_first ? anchors + b : candidates + (item - 1) * K,
                            is_first,
                            candidates + item * K,
                            unary + item * K,
                            rank,
                            int(K)};
  float* out = scores + item * K * K;
  pair_scores<Lanes1>(group, view, out);
  if (temperatures == nullptr) return;
  const float temperature = temperatures[b];
  normalize_lattice(group, out, int(K), temperature > 0.0f ? temperature : 1.0f);
}

// One work-group a position of a block. delta and bias may be null.
template <typename T>
DFLASH2_INLINE void convolve_kernel(const T* x, const T* kernel, const T* delta, const T* bias,
                                    int64_t x_block_stride, int64_t x_stride,
                                    int64_t delta_block_stride, int64_t delta_stride,
                                    int64_t delta_tap_stride, int64_t length, int64_t channels,
                                    int64_t taps, int64_t group_size, T* out) {
  const int64_t block = work_item() / length;
  const ConvolutionView<T> view = {x + block * x_block_stride,
                                   kernel,
                                   delta == nullptr ? nullptr : delta + block * delta_block_stride,
                                   bias,
                                   out + block * length * channels,
                                   x_stride,
                                   delta_stride,
                                   delta_tap_stride,
                                   channels,
                                   group_size,
                                   int(length),
                                   int(taps)};
  convolve_position<Lanes1>(WorkGroup(), view, int(work_item() % length));
}

#define DFLASH2_TYPED_KERNELS(T, suffix)                                                      \
  DFLASH2_KERNEL void dflash2_pair_scores_##suffix(                                           \
      const T* gates, const int64_t* anchors, const int64_t* candidates, const float* unary,  \
      const T* predecessor_codebook, const T* successor_codebook, const float* temperatures,  \
      int64_t positions, int64_t K, int64_t rank, float* scores) {                            \
    pair_scores_kernel(gates, anchors, candidates, unary, predecessor_codebook,               \
                       successor_codebook, temperatures, positions, K, rank, scores);         \
  }                                                                                           \
  DFLASH2_KERNEL void dflash2_convolve_block_##suffix(                                        \
      const T* x, const T* kernel, const T* delta, const T* bias, int64_t x_block_stride,     \
      int64_t x_stride, int64_t delta_block_stride, int64_t delta_stride,                     \
      int64_t delta_tap_stride, int64_t length, int64_t channels, int64_t taps,               \
      int64_t group_size, T* out) {                                                           \
    convolve_kernel(x, kernel, delta, bias, x_block_stride, x_stride, delta_block_stride,     \
                    delta_stride, delta_tap_stride, length, channels, taps, group_size, out); \
  }
DFLASH2_TYPED_KERNELS(float, float32)
DFLASH2_TYPED_KERNELS(BFloat16, bfloat16)
DFLASH2_TYPED_KERNELS(Float16, float16)
#undef DFLASH2_TYPED_KERNELS

// `splits` work-groups a buffer share its slots' bytes, 16 at a time; `scratch` holds that for
// every move of every work-group.
DFLASH2_KERNEL void dflash2_move_kv(const uint64_t* data_ptrs, const int64_t* strides,
                                    const int64_t* targets, const int64_t* sources, int64_t count,
                                    int64_t splits, uint8_t* scratch) {
  constexpr int64_t kUnit = 16;
  const WorkGroup group;
  const int64_t buffer = work_item() / splits, stride = strides[buffer];
  uint8_t* const memory = reinterpret_cast<uint8_t*>(data_ptrs[buffer]);
  uint8_t* const mine = scratch + work_item() * count * kUnit;
  for (int64_t at = work_item() % splits * kUnit; at < stride; at += splits * kUnit) {
    const int64_t bytes = stride - at < kUnit ? stride - at : kUnit;
    move_column(group, memory + at, stride, bytes, targets, sources, count, mine);
    group.barrier();
  }
}
