// Attention of a few query tokens over a request's paged prefix and their own block.
//
// A request has `kv_len` keys, in logical order: the slots of its row of the slot table. The last
// `q_len` of them are the query tokens' own. A query sees the keys that its mask lets it see; they
// get consecutive logical positions (a tree node's ancestors stand directly behind the prefix), and
// everything below depends on logical positions only:
//
//   * 64 positions form a block, 4 blocks a chunk, both aligned to absolute positions;
//   * inside a chunk an online softmax (Milakov and Gimelshein, arXiv 1805.02867; the blocking is
//     FlashAttention's, arXiv 2205.14135) goes block by block;
//   * finished chunks are merged into the total one after another.
//
// So one query's result is the same bit for bit whatever else is in the call: a token decoded
// alone, verified among the nodes of a tree, or prefilled; one thread or many; chunks in parallel
// or not.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "attention_call.h"
#include "simd.h"

namespace dflash2 {

// The work on one tile: some query tokens of one request and the heads of one key/value head.
template <typename T>
class AttentionTile {
 public:
  AttentionTile(const AttentionCall<T>& call, TileScratch& scratch, int request, int kv_head,
                int first_token, int tokens)
      : call_(call),
        scratch_(scratch),
        request_(request),
        kv_head_(kv_head),
        group_(call.heads / call.kv_heads),
        q_len_(int(call.q_starts[request + 1] - call.q_starts[request])),
        prefix_(call.kv_lens[request] - q_len_),
        first_token_(first_token),
        tokens_(tokens),
        rows_(tokens * group_),
        k_width_(round_up(call.head_dim, kLanes)),
        v_width_(round_up(call.v_dim, kLanes)),
        slots_(call.slot_table + call.table_rows[request] * call.table_stride) {
    pack_queries();
    lay_out_rows();
  }

  int rows() const { return rows_; }
  int v_width() const { return v_width_; }
  int64_t first_chunk() const { return begin_ / kChunk; }
  int64_t end_chunk() const { return (end_ + kChunk - 1) / kChunk; }

  // Computes the state of one chunk from nothing.
  void compute_chunk(int64_t chunk, const RowStates& state) {
    state.clear(rows_, v_width_);
    const int64_t chunk_end = std::min(end_, (chunk + 1) * kChunk);
    for (int64_t base = chunk * kChunk; base < chunk_end; base += kBlock) {
      if (base + kBlock > begin_) step(base, state);
    }
  }

  // Folds a chunk's state into the total; an empty chunk leaves it as it is.
  void merge(const RowStates& total, const RowStates& chunk) const {
    for (int r = 0; r < rows_; ++r) {
      const float top = std::max(total.maximum[r], chunk.maximum[r]);
      if (chunk.maximum[r] == kMinusInfinity) continue;
      const Vec keep = exp(splat(total.maximum[r] - top));
      const Vec add = exp(splat(chunk.maximum[r] - top));
      const auto fold = [&](float* into, const float* from) {
        store(into, load(into) * keep + load(from) * add);
      };
      total.maximum[r] = top;
      fold(total.sums + r * kLanes, chunk.sums + r * kLanes);
      for (int d = 0; d < v_width_; d += kLanes) {
        fold(total.values + r * v_width_ + d, chunk.values + r * v_width_ + d);
      }
    }
  }

  // Divides by the softmax denominator (attention sinks included) and writes the output rows.
  void write(const RowStates& total) const {
    for (int r = 0; r < rows_; ++r) {
      const int head = kv_head_ * group_ + r % group_;
      float denominator = reduce_add(load(total.sums + r * kLanes));
      float factor = 1.0f;
      if (call_.sinks != nullptr) {
        const float top = std::max(total.maximum[r], call_.sinks[head]);
        factor = exp(splat(total.maximum[r] - top))[0];
        denominator = denominator * factor + exp(splat(call_.sinks[head] - top))[0];
      }
      const float weight = denominator == 0.0f ? 0.0f : factor / denominator;
      const int64_t token = call_.q_starts[request_] + first_token_ + r / group_;
      T* out = call_.out + token * call_.out_stride + head * call_.out_head_stride;
      for (int d = 0; d < v_width_; d += kLanes) {
        const Vec value = load(total.values + r * v_width_ + d) * weight;
        if (call_.v_dim - d >= kLanes) {
          store(out + d, value);
        } else {
          store_partial(out + d, value, call_.v_dim - d);
        }
      }
    }
  }

 private:
  void pack_queries() {
    scratch_.queries.assign(size_t(rows_) * k_width_, 0.0f);
    for (int r = 0; r < rows_; ++r) {
      const int64_t token = call_.q_starts[request_] + first_token_ + r / group_;
      const T* q =
          call_.q + token * call_.q_stride + (kv_head_ * group_ + r % group_) * call_.q_head_stride;
      for (int d = 0; d < call_.head_dim; d += kLanes) {
        const int count = std::min(kLanes, call_.head_dim - d);
        const Vec value = count == kLanes ? load(q + d) : load_partial(q + d, count);
        store(&scratch_.queries[size_t(r) * k_width_ + d], value * call_.scale);
      }
    }
  }

  // For every query token: the half-open range of logical positions it sees, and in a tree the
  // block tokens (ancestors and itself) that stand behind the prefix.
  void lay_out_rows() {
    scratch_.begins.resize(tokens_);
    scratch_.ends.resize(tokens_);
    if (int(scratch_.ancestors.size()) < tokens_) scratch_.ancestors.resize(tokens_);
    begin_ = call_.kv_lens[request_];
    end_ = 0;
    for (int t = 0; t < tokens_; ++t) {
      int64_t position = prefix_ + first_token_ + t;
      int64_t end = position + 1;
      if (call_.mask_mode == MaskMode::kBidirectional) {
        end = prefix_ + q_len_;
        if (call_.window >= 0) end = std::min(end, position + call_.window + 1);
      } else if (call_.mask_mode == MaskMode::kTree) {
        scratch_.ancestors[t].clear();
        const bool* row = call_.tree_mask + call_.mask_offsets[request_] +
                          (first_token_ + t) * call_.mask_strides[request_];
        for (int key = 0; key < q_len_; ++key) {
          if (row[key]) scratch_.ancestors[t].push_back(key);
        }
        end = prefix_ + int64_t(scratch_.ancestors[t].size());
        position = end - 1;
      }
      const int64_t begin = call_.window < 0 ? 0 : std::max<int64_t>(0, position - call_.window);
      scratch_.begins[t] = begin;
      scratch_.ends[t] = end;
      begin_ = std::min(begin_, begin);
      end_ = std::max(end_, end);
    }
  }

  // One block of 64 logical positions for all rows.
  void step(int64_t base, const RowStates& state) {
    const bool tree = call_.mask_mode == MaskMode::kTree;
    const int64_t shared_end = tree ? prefix_ : call_.kv_lens[request_];
    const int shared =  // keys of this block that have the same position for every row
        int(std::max<int64_t>(0, std::min<int64_t>({kBlock, shared_end - base, end_ - base})));
    if (shared > 0) {
      // Before the tile's first visible position a sliding-window pool may hold no slot any more.
      const int absent = int(std::clamp<int64_t>(begin_ - base, 0, shared));
      pack_keys(base, absent, shared, scratch_.keys);
      pack_values(base, absent, shared, scratch_.values);
      score(scratch_.keys, shared, scratch_.scores, kBlock);
    }
    if (tree && base + kBlock > prefix_) gather_ancestor_scores(base, shared);
    for (int r = 0; r < rows_; ++r) soften(r, base, state);
    if (shared > 0) accumulate(scratch_.values.data(), shared, state);
    if (tree && base + kBlock > prefix_) accumulate_ancestors(base, state);
  }

  int64_t slot(int64_t key) const {
    const int64_t slot = slots_[key];
    return call_.slot_map == nullptr ? slot : call_.slot_map[slot];
  }

  // keys[group of 16][d][16 keys]. Lanes before `absent` and behind `count` are zero.
  void pack_keys(int64_t first, int absent, int count, std::vector<float>& keys) {
    const int groups = (count + kLanes - 1) / kLanes;
    keys.resize(std::max(keys.size(), size_t(groups) * k_width_ * kLanes));
    for (int g = 0; g < groups; ++g) {
      const int present = std::min(kLanes, count - g * kLanes);
      const int skipped = std::clamp(absent - g * kLanes, 0, present);
      const T* pointers[kLanes];
      for (int i = skipped; i < present; ++i) {
        pointers[i] = call_.k_cache + slot(first + g * kLanes + i) * call_.k_stride +
                      kv_head_ * call_.k_head_stride;
      }
      float* out = &keys[size_t(g) * k_width_ * kLanes];
      for (int d = 0; d < k_width_; d += kLanes) {
        const int width = std::min(kLanes, call_.head_dim - d);
        Vec tile[kLanes] = {};
        for (int i = skipped; i < present; ++i) {
          tile[i] = width == kLanes ? load(pointers[i] + d) : load_partial(pointers[i] + d, width);
        }
        transpose(tile);
        for (int i = 0; i < kLanes; ++i) store(out + (d + i) * kLanes, tile[i]);
      }
    }
  }

  // values[key][v_width]. Rows before `absent` are zero.
  void pack_values(int64_t first, int absent, int count, std::vector<float>& values) {
    values.resize(std::max(values.size(), size_t(count) * v_width_));
    std::fill(values.begin(), values.begin() + size_t(absent) * v_width_, 0.0f);
    for (int i = absent; i < count; ++i) {
      const T* v =
          call_.v_cache + slot(first + i) * call_.v_stride + kv_head_ * call_.v_head_stride;
      for (int d = 0; d < v_width_; d += kLanes) {
        const int width = std::min(kLanes, call_.v_dim - d);
        store(&values[size_t(i) * v_width_ + d],
              width == kLanes ? load(v + d) : load_partial(v + d, width));
      }
    }
  }

  // scores[row][key] = q . k, one fused multiply-add per dimension in ascending order.
  void score(const std::vector<float>& keys, int count, std::vector<float>& scores, int stride) {
    scores.resize(std::max(scores.size(), size_t(rows_) * stride));
    const int groups = (count + kLanes - 1) / kLanes;
    int r = 0;
    for (; r + kRowStep <= rows_; r += kRowStep) {
      for (int g = 0; g < groups; ++g) score_rows<kRowStep, 1>(keys, scores, stride, r, g);
    }
    for (; r < rows_; ++r) {
      int g = 0;
      for (; g + 4 <= groups; g += 4) score_rows<1, 4>(keys, scores, stride, r, g);
      for (; g < groups; ++g) score_rows<1, 1>(keys, scores, stride, r, g);
    }
  }

  template <int kRows, int kGroups>
  void score_rows(const std::vector<float>& keys, std::vector<float>& scores, int stride, int row,
                  int group) const {
    Vec sums[kRows][kGroups] = {};
    const float* q = &scratch_.queries[size_t(row) * k_width_];
    const float* k = &keys[size_t(group) * k_width_ * kLanes];
    for (int d = 0; d < k_width_; ++d) {
      for (int g = 0; g < kGroups; ++g) {
        const Vec key = load(k + (size_t(g) * k_width_ + d) * kLanes);
        for (int r = 0; r < kRows; ++r) sums[r][g] += q[r * k_width_ + d] * key;
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int g = 0; g < kGroups; ++g) {
        store(&scores[size_t(row + r) * stride + (group + g) * kLanes], sums[r][g]);
      }
    }
  }

  // Tree: the block tokens' keys are scored once, then every row's ancestors are put in order.
  void gather_ancestor_scores(int64_t base, int shared) {
    if (!block_ready_) {
      pack_keys(prefix_, 0, q_len_, scratch_.block_keys);
      pack_values(prefix_, 0, q_len_, scratch_.block_values);
      block_stride_ = round_up(q_len_, kLanes);
      score(scratch_.block_keys, q_len_, scratch_.block_scores, block_stride_);
      block_ready_ = true;
    }
    scratch_.scores.resize(std::max(scratch_.scores.size(), size_t(rows_) * kBlock));
    for (int r = 0; r < rows_; ++r) {
      const std::vector<int>& path = scratch_.ancestors[r / group_];
      const int64_t last = std::min<int64_t>(base + kBlock, scratch_.ends[r / group_]);
      for (int64_t position = base + shared; position < last; ++position) {
        scratch_.scores[size_t(r) * kBlock + (position - base)] =
            scratch_.block_scores[size_t(r) * block_stride_ + path[position - prefix_]];
      }
    }
  }

  // Scores of one row -> weights, with the running maximum and sums brought up to date.
  void soften(int r, int64_t base, const RowStates& state) {
    const VecI lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const int64_t block = kBlock;
    const int begin = int(std::clamp<int64_t>(scratch_.begins[r / group_] - base, 0, block));
    const int end = int(std::clamp<int64_t>(scratch_.ends[r / group_] - base, 0, block));
    float* scores = &scratch_.scores[size_t(r) * kBlock];
    Vec s[kBlockVecs];
    Vec top = splat(kMinusInfinity);
    for (int g = 0; g < kBlockVecs; ++g) {
      const VecI key = lane + g * kLanes;
      s[g] = load(scores + g * kLanes);
      if (call_.logit_cap > 0) s[g] = call_.logit_cap * tanh(s[g] / call_.logit_cap);
      s[g] = ((key >= begin) & (key < end)) ? s[g] : splat(kMinusInfinity);
      top = max(top, s[g]);
    }
    const float before = state.maximum[r];
    const float now = std::max(before, reduce_max(top));
    if (now == kMinusInfinity) {  // nothing visible yet
      for (int g = 0; g < kBlockVecs; ++g) store(scores + g * kLanes, Vec{});
      return;
    }
    Vec sums = load(state.sums + r * kLanes);
    if (now != before) {
      const Vec decay = exp(splat(before - now));
      sums = sums * decay;
      float* values = state.values + size_t(r) * v_width_;
      for (int d = 0; d < v_width_; d += kLanes) store(values + d, load(values + d) * decay);
      state.maximum[r] = now;
    }
    for (int g = 0; g < kBlockVecs; ++g) {
      const Vec weight = exp(s[g] - now);
      store(scores + g * kLanes, weight);
      sums = sums + weight;
    }
    store(state.sums + r * kLanes, sums);
  }

  // values += weights * V, key after key in ascending order.
  void accumulate(const float* v, int count, const RowStates& state) {
    constexpr int kStep = 4;
    int r = 0;
    for (; r + kStep <= rows_; r += kStep) accumulate_rows<kStep>(v, count, state, r);
    for (; r < rows_; ++r) accumulate_rows<1>(v, count, state, r);
  }

  template <int kRows>
  void accumulate_rows(const float* v, int count, const RowStates& state, int row) {
    int d = 0;
    for (; d + 4 * kLanes <= v_width_; d += 4 * kLanes) {
      accumulate_columns<kRows, 4>(v, count, state, row, d);
    }
    for (; d < v_width_; d += kLanes) accumulate_columns<kRows, 1>(v, count, state, row, d);
  }

  template <int kRows, int kColumns>
  void accumulate_columns(const float* v, int count, const RowStates& state, int row, int d) {
    Vec sums[kRows][kColumns];
    float* out = state.values + size_t(row) * v_width_ + d;
    for (int r = 0; r < kRows; ++r) {
      for (int c = 0; c < kColumns; ++c) sums[r][c] = load(out + r * v_width_ + c * kLanes);
    }
    const float* weights = &scratch_.scores[size_t(row) * kBlock];
    for (int key = 0; key < count; ++key) {
      for (int c = 0; c < kColumns; ++c) {
        const Vec value = load(v + size_t(key) * v_width_ + d + c * kLanes);
        for (int r = 0; r < kRows; ++r) sums[r][c] += weights[r * kBlock + key] * value;
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int c = 0; c < kColumns; ++c) store(out + r * v_width_ + c * kLanes, sums[r][c]);
    }
  }

  void accumulate_ancestors(int64_t base, const RowStates& state) {
    for (int r = 0; r < rows_; ++r) {
      const std::vector<int>& path = scratch_.ancestors[r / group_];
      const int64_t last = std::min<int64_t>(base + kBlock, scratch_.ends[r / group_]);
      float* out = state.values + size_t(r) * v_width_;
      for (int64_t position = std::max(base, prefix_); position < last; ++position) {
        const float weight = scratch_.scores[size_t(r) * kBlock + (position - base)];
        const float* v = &scratch_.block_values[size_t(path[position - prefix_]) * v_width_];
        for (int d = 0; d < v_width_; d += kLanes) {
          Vec sum = load(out + d);
          sum += weight * load(v + d);
          store(out + d, sum);
        }
      }
    }
  }

  const AttentionCall<T>& call_;
  TileScratch& scratch_;
  const int request_, kv_head_, group_, q_len_;
  const int64_t prefix_;
  const int first_token_, tokens_, rows_, k_width_, v_width_;
  const int32_t* slots_;

  int64_t begin_ = 0, end_ = 0;  // logical positions that any row of the tile sees
  bool block_ready_ = false;     // block_keys, block_values and block_scores are filled
  int block_stride_ = 0;         // row stride of block_scores
};

}  // namespace dflash2
