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
#include "attention_packing.h"
#include "attention_products.h"
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
        lanes_(round_up(rows_, kLanes)),
        depth_(lanes_for(call.head_dim)),
        k_width_(round_up(depth_, kLanes)),
        v_width_(round_up(call.v_dim, kLanes)),
        slots_(call.slot_table + call.table_rows[request] * call.table_stride) {
    pack_queries();
    lay_out_rows();
  }

  int lanes() const { return lanes_; }  // rows, rounded up
  int v_width() const { return v_width_; }
  int64_t first_chunk() const { return begin_ / kChunk; }
  int64_t end_chunk() const { return (end_ + kChunk - 1) / kChunk; }

  // Computes the state of one chunk from nothing.
  void compute_chunk(int64_t chunk, const RowStates& state) {
    state.clear(lanes_, v_width_);
    const int64_t chunk_end = std::min(end_, (chunk + 1) * kChunk);
    for (int64_t base = chunk * kChunk; base < chunk_end; base += kBlock) {
      if (base + kBlock > begin_) step(base, state);
    }
  }

  // Folds a chunk's state into the total; an empty chunk leaves it as it is.
  void merge(const RowStates& total, const RowStates& chunk) const {
    alignas(64) float keep[kLanes], add[kLanes];
    const auto fold = [](float* into, const float* from, float kept, float added) {
      store(into, load(into) * kept + load(from) * added);
    };
    for (int first = 0; first < rows_; first += kLanes) {
      const Vec top = max(load(total.maximum + first), load(chunk.maximum + first));
      const Vec shift = finite(top);
      store(keep, exp(load(total.maximum + first) - shift));
      store(add, exp(load(chunk.maximum + first) - shift));
      store(total.maximum + first, top);
      store(total.sums + first,
            load(total.sums + first) * load(keep) + load(chunk.sums + first) * load(add));
      for (int r = first; r < std::min(rows_, first + kLanes); ++r) {
        for (int d = 0; d < v_width_; d += kLanes) {
          fold(total.values + r * v_width_ + d, chunk.values + r * v_width_ + d, keep[r - first],
               add[r - first]);
        }
      }
    }
  }

  // Divides by the softmax denominator (attention sinks included) and writes the output rows.
  void write(const RowStates& total) const {
    for (int r = 0; r < rows_; ++r) {
      const int head = kv_head_ * group_ + r % group_;
      float denominator = total.sums[r];
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
  using P = Packing<T>;

  static int lanes_for(int numbers) { return (numbers + P::kPerLane - 1) / P::kPerLane; }

  // Sixteen lanes of a query or key, from lane `d` on.
  Vec load_channels(const T* row, int d) const {
    constexpr int kWhole = kLanes * P::kPerLane;
    const int first = d * P::kPerLane, left = call_.head_dim - first;
    if (left >= kWhole) return P::load_channels(row + first);
    T padded[kWhole] = {};
    std::memcpy(padded, row + first, left * sizeof(T));
    return P::load_channels(padded);
  }

  // queries[d][row], d counting lanes.
  void pack_queries() {
    scratch_.queries.grow(size_t(k_width_) * lanes_);
    float* out = scratch_.queries.data();
    for (int first = 0; first < lanes_; first += kLanes) {
      const int present = std::min(kLanes, rows_ - first);
      for (int d = 0; d < k_width_; d += kLanes) {
        Vec tile[kLanes] = {};
        for (int i = 0; i < present; ++i) {
          const int r = first + i;
          const int64_t token = call_.q_starts[request_] + first_token_ + r / group_;
          const T* q = call_.q + token * call_.q_stride +
                       (kv_head_ * group_ + r % group_) * call_.q_head_stride;
          tile[i] = load_channels(q, d);
        }
        transpose(tile);
        for (int i = 0; i < kLanes; ++i) store(out + (d + i) * lanes_ + first, tile[i]);
      }
    }
  }

  // For every query token: the half-open range of logical positions it sees, and in a tree the
  // block tokens (ancestors and itself) that stand behind the prefix.
  void lay_out_rows() {
    scratch_.begins.assign(lanes_, 0);
    scratch_.ends.assign(lanes_, 0);
    if (int(scratch_.ancestors.size()) < tokens_) scratch_.ancestors.resize(tokens_);
    begin_ = open_end_ = call_.kv_lens[request_];
    end_ = open_begin_ = 0;
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
      std::fill_n(&scratch_.begins[t * group_], group_, int32_t(begin));
      std::fill_n(&scratch_.ends[t * group_], group_, int32_t(end));
      begin_ = std::min(begin_, begin), open_begin_ = std::max(open_begin_, begin);
      end_ = std::max(end_, end), open_end_ = std::min(open_end_, end);
    }
  }

  // One block of 64 logical positions for all rows.
  void step(int64_t base, const RowStates& state) {
    const bool tree = call_.mask_mode == MaskMode::kTree;
    const bool forks = tree && base + kBlock > prefix_;  // rows have positions of their own
    const int64_t shared_end = tree ? prefix_ : call_.kv_lens[request_];
    const int shared =  // keys of this block that have the same position for every row
        int(std::max<int64_t>(0, std::min<int64_t>({kBlock, shared_end - base, end_ - base})));
    // Their values in lanes; in front of a fork a lane that is not full goes with the rows' own.
    const int shared_lanes = forks ? shared / P::kPerLane : lanes_for(shared);
    if (shared > 0) {
      // Before the tile's first visible position a sliding-window pool may hold no slot any more.
      const int absent = int(std::clamp<int64_t>(begin_ - base, 0, shared));
      unpack_keys(base, absent, shared, scratch_.keys);
      unpack_values(base, absent, shared, shared_lanes);
      score(scratch_.keys, shared, scratch_.scores, base + kBlock, std::min(shared_end, end_));
    }
    if (forks) gather_ancestor_scores(base, shared);
    soften(base, state);
    if (shared_lanes > 0) {
      weigh_values<P>(scratch_.scores.data(), lanes_, rows_, scratch_.values.data(), v_width_,
                      shared_lanes, state.values);
    }
    if (forks) accumulate_ancestors(base, shared_lanes * P::kPerLane, state);
  }

  int64_t slot(int64_t key) const {
    const int64_t slot = slots_[key];
    return call_.slot_map == nullptr ? slot : call_.slot_map[slot];
  }

  // Slots lie anywhere in the cache: what the next block needs comes while this one is computed.
  // Inlined, because the compiler takes a function that only prefetches for one that does nothing.
  __attribute__((always_inline)) void prefetch(int64_t first, int64_t limit) const {
    constexpr int kLine = 64 / sizeof(T);
    for (int64_t key = first; key < limit; ++key) {
      const T* k = key_row(key);
      const T* v = value_row(key);
      for (int d = 0; d < call_.head_dim; d += kLine) __builtin_prefetch(k + d, 0, 2);
      for (int d = 0; d < call_.v_dim; d += kLine) __builtin_prefetch(v + d, 0, 2);
    }
  }

  const T* key_row(int64_t position) const {
    return call_.k_cache + slot(position) * call_.k_stride + kv_head_ * call_.k_head_stride;
  }
  const T* value_row(int64_t position) const {
    return call_.v_cache + slot(position) * call_.v_stride + kv_head_ * call_.v_head_stride;
  }

  // Keys of `count` positions, [key][width in lanes, rounded up]. Rows before `absent` are zero.
  void unpack_keys(int64_t first, int absent, int count, Floats& into) const {
    into.grow(size_t(round_up(count, kKeyStep)) * k_width_);
    std::fill_n(into.data(), size_t(absent) * k_width_, 0.0f);
    for (int i = absent; i < count; ++i) {
      const T* from = key_row(first + i);
      float* out = into.data() + size_t(i) * k_width_;
      for (int d = 0; d < k_width_; d += kLanes) store(out + d, load_channels(from, d));
    }
  }

  // Values of `count` positions, [lane of positions][width rounded up].
  void unpack_values(int64_t first, int absent, int count, int lanes) {
    scratch_.values.grow(size_t(lanes) * v_width_);
    for (int lane = 0; lane < lanes; ++lane) {
      const T* rows[P::kPerLane] = {};
      for (int i = 0; i < P::kPerLane; ++i) {
        const int key = lane * P::kPerLane + i;
        if (absent <= key && key < count) rows[i] = value_row(first + key);
      }
      float* out = scratch_.values.data() + size_t(lane) * v_width_;
      for (int d = 0; d < v_width_; d += kLanes) store(out + d, load_values(rows, d));
    }
  }

  // Sixteen channels of the positions of a lane; a position without a row counts as zeros.
  Vec load_values(const T* const (&rows)[P::kPerLane], int d) const {
    const int left = std::min(kLanes, call_.v_dim - d);
    const T* from[P::kPerLane];
    T padded[P::kPerLane][kLanes];
    for (int i = 0; i < P::kPerLane; ++i) {
      const bool whole = rows[i] != nullptr && left == kLanes;
      if (!whole) std::memset(padded[i], 0, sizeof(padded[i]));
      if (!whole && rows[i] != nullptr) std::memcpy(padded[i], rows[i] + d, left * sizeof(T));
      from[i] = whole ? rows[i] + d : padded[i];
    }
    return P::load_positions(from);
  }

  // Scores of `count` keys; meanwhile the keys and values of the positions from `next` to `limit`
  // are fetched.
  void score(Floats& keys, int count, Floats& scores, int64_t next, int64_t limit) {
    scores.grow(size_t(std::max(kBlock, round_up(count, kKeyStep))) * lanes_);
    for (int key = 0; key < count; key += kKeyStep) {
      prefetch(next + key, std::min(limit, next + key + kKeyStep));
      score_keys<P>(scratch_.queries.data(), keys.data() + key * k_width_, k_width_, depth_, lanes_,
                    call_.scale, scores.data() + key * lanes_);
    }
  }

  // Tree: the block tokens' keys are scored once, then every row's ancestors are put in order.
  void gather_ancestor_scores(int64_t base, int shared) {
    if (!block_ready_) {
      unpack_keys(prefix_, 0, q_len_, scratch_.block_keys);
      score(scratch_.block_keys, q_len_, scratch_.block_scores, 0, 0);
      block_ready_ = true;
    }
    scratch_.scores.grow(size_t(kBlock) * lanes_);
    for (int r = 0; r < rows_; ++r) {
      const std::vector<int>& path = scratch_.ancestors[r / group_];
      const int64_t last = std::min<int64_t>(base + kBlock, scratch_.ends[r]);
      for (int64_t position = base + shared; position < last; ++position) {
        scratch_.scores.data()[(position - base) * lanes_ + r] =
            scratch_.block_scores.data()[path[position - prefix_] * lanes_ + r];
      }
    }
  }

  // Scores -> weights, packed, with the running maximum and sums brought up to date.
  void soften(int64_t base, const RowStates& state) {
    const bool open = open_begin_ <= base && base + kBlock <= open_end_;  // every row sees all
    for (int first = 0; first < rows_; first += kLanes) {
      float* scores = scratch_.scores.data() + first;
      if (call_.logit_cap > 0) cap(scores);
      if (!open) hide(scores, first, base);
      Vec tops[4] = {splat(kMinusInfinity), splat(kMinusInfinity), splat(kMinusInfinity),
                     splat(kMinusInfinity)};
      for (int key = 0; key < kBlock; key += 4) {
        for (int i = 0; i < 4; ++i) tops[i] = max(tops[i], load(scores + (key + i) * lanes_));
      }
      const Vec before = load(state.maximum + first);
      const Vec now = max(before, max(max(tops[0], tops[1]), max(tops[2], tops[3])));
      const Vec shift = finite(now);
      Vec sums = load(state.sums + first) * rescale(first, exp(before - shift), state);
      for (int key = 0; key < kBlock; key += P::kPerLane) {
        Vec weights[P::kPerLane];
        for (int i = 0; i < P::kPerLane; ++i) {
          weights[i] = exp(load(scores + (key + i) * lanes_) - shift);
        }
        const Vec packed = P::pack(weights);
        sums = P::multiply_add(sums, packed, &P::kOnes);
        store(scores + key / P::kPerLane * lanes_, packed);
      }
      store(state.maximum + first, now);
      store(state.sums + first, sums);
    }
  }

  void cap(float* scores) const {
    for (int key = 0; key < kBlock; ++key) {
      const Vec score = load(scores + key * lanes_);
      store(scores + key * lanes_, call_.logit_cap * tanh(score / call_.logit_cap));
    }
  }

  // What a row does not see scores minus infinity.
  void hide(float* scores, int first, int64_t base) const {
    VecI begin, end;
    std::memcpy(&begin, &scratch_.begins[first], sizeof(begin));
    std::memcpy(&end, &scratch_.ends[first], sizeof(end));
    for (int key = 0; key < kBlock; ++key) {
      const int32_t position = int32_t(base) + key;
      const Vec score = load(scores + key * lanes_);
      store(scores + key * lanes_,
            ((begin <= position) & (end > position)) ? score : splat(kMinusInfinity));
    }
  }

  // Multiplies the values of 16 rows by their factors.
  Vec rescale(int first, Vec factors, const RowStates& state) const {
    for (int r = first; r < std::min(rows_, first + kLanes); ++r) {
      const float factor = factors[r - first];
      if (factor == 1.0f) continue;
      float* values = state.values + size_t(r) * v_width_;
      for (int d = 0; d < v_width_; d += kLanes) store(values + d, load(values + d) * factor);
    }
    return factors;
  }

  // Adds the values of a row's own positions, from `first` of the block on.
  void accumulate_ancestors(int64_t base, int first, const RowStates& state) {
    for (int r = 0; r < rows_; ++r) {
      const std::vector<int>& path = scratch_.ancestors[r / group_];
      const int64_t last = std::min<int64_t>(base + kBlock, scratch_.ends[r]);
      float* out = state.values + size_t(r) * v_width_;
      for (int64_t lane = base + first; lane < last; lane += P::kPerLane) {
        const T* rows[P::kPerLane] = {};
        for (int i = 0; i < P::kPerLane; ++i) {
          const int64_t position = lane + i;
          if (position < begin_ || position >= last) continue;
          rows[i] = value_row(position < prefix_ ? position : prefix_ + path[position - prefix_]);
        }
        const float* weight = scratch_.scores.data() + (lane - base) / P::kPerLane * lanes_ + r;
        for (int d = 0; d < v_width_; d += kLanes) {
          store(out + d, P::multiply_add(load(out + d), load_values(rows, d), weight));
        }
      }
    }
  }

  const AttentionCall<T>& call_;
  TileScratch& scratch_;
  const int request_, kv_head_, group_, q_len_;
  const int64_t prefix_;
  const int first_token_, tokens_, rows_, lanes_;
  const int depth_, k_width_, v_width_;  // lanes of a key; rounded up; those of an output row
  const int32_t* slots_;

  int64_t begin_ = 0, end_ = 0;            // logical positions that any row of the tile sees
  int64_t open_begin_ = 0, open_end_ = 0;  // those that every row sees
  bool block_ready_ = false;               // block_keys, block_values and block_scores are filled
};

}  // namespace dflash2
