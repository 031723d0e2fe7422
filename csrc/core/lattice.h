// Edges of the candidate lattice: S(a, c) = unary(c) + <A[a] * gate, B[c]> for every pair of
// neighbouring candidates, and their log-softmax over c (DFlash 2's candidate selector).
#pragma once

#include <cmath>
#include <cstdint>

#include "scalar.h"

namespace dflash2 {

// One position of one request's lattice.
template <typename T>
struct PairView {
  const T *predecessor_codebook, *successor_codebook;  // [V, rank]
  const T* gate;                                       // [rank], the projected hidden state
  const int64_t* predecessors;  // [K], or one token that stands for all of them: the anchor
  bool is_first;                // the predecessor is the anchor
  const int64_t* candidates;    // [K]
  const float* unary;           // [K]
  int64_t rank;
  int num_candidates;  // K
};

template <typename Lanes, typename T>
DFLASH2_INLINE float gated_dot(const T* left, const T* gate, const T* right, int64_t rank) {
  typename Lanes::Pack sums = {};
  int64_t i = 0;
  for (; i + Lanes::kWidth <= rank; i += Lanes::kWidth) {
    sums += Lanes::load(left + i) * Lanes::load(gate + i) * Lanes::load(right + i);
  }
  float sum = Lanes::sum(sums);
  for (; i < rank; ++i) sum += to_float(left[i]) * to_float(gate[i]) * to_float(right[i]);
  return sum;
}

// out: [K, K] (predecessor, candidate). At the first position every row is the same.
template <typename Lanes, typename Group, typename T>
DFLASH2_INLINE void pair_scores(const Group& group, const PairView<T>& view, float* out) {
  const int K = view.num_candidates;
  for (int pair = group.rank(); pair < K * K; pair += group.size()) {
    const int a = pair / K, c = pair % K;
    if (view.is_first && a > 0) continue;
    const int64_t predecessor = view.predecessors[a], candidate = view.candidates[c];
    out[pair] = view.unary[c] +
                gated_dot<Lanes>(view.predecessor_codebook + predecessor * view.rank, view.gate,
                                 view.successor_codebook + candidate * view.rank, view.rank);
  }
  group.barrier();
  if (!view.is_first) return;
  for (int pair = K + group.rank(); pair < K * K; pair += group.size()) out[pair] = out[pair % K];
  group.barrier();
}

// Log-softmax of one row divided by the temperature, in place.
DFLASH2_INLINE void normalize_edges(float* row, int count, float temperature) {
  float top = -__builtin_inff();
  for (int i = 0; i < count; ++i) {
    row[i] /= temperature;
    top = row[i] > top ? row[i] : top;
  }
  float mass = 0.0f;
  for (int i = 0; i < count; ++i) mass += exp_of_negative(row[i] - top);
  const float log_mass = std::log(mass);
  for (int i = 0; i < count; ++i) row[i] = row[i] - top - log_mass;
}

template <typename Group>
DFLASH2_INLINE void normalize_lattice(const Group& group, float* edges, int num_candidates,
                                      float temperature) {
  for (int a = group.rank(); a < num_candidates; a += group.size()) {
    normalize_edges(edges + int64_t(a) * num_candidates, num_candidates, temperature);
  }
}

}  // namespace dflash2
