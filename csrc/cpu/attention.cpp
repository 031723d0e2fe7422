// Launcher of core/paged_attention.h: checks, tiles, threads.
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <optional>

#include "../core/paged_attention.h"
#include "attention_checks.h"
#include "parallel.h"

namespace dflash2 {
namespace {

// Work below this (keys x rows x width) is done by the calling thread: waking others costs more.
constexpr int64_t kSerialWork = 1 << 18;

struct TileSpan {
  int request, kv_head, first_token, tokens;
  int64_t first_chunk, end_chunk;  // filled when the chunks of a tile are computed in parallel
  int64_t memory;                  // offset of its chunk states
};

template <typename T>
std::vector<TileSpan> cut_tiles(const AttentionCall<T>& call, int64_t& work) {
  const int group = call.heads / call.kv_heads;
  const int tile_tokens = std::max(1, kTileRows / group);
  std::vector<TileSpan> tiles;
  work = 0;
  for (int r = 0; r < call.requests; ++r) {
    const int q_len = int(call.q_starts[r + 1] - call.q_starts[r]);
    work += call.kv_lens[r] * q_len * call.heads * (call.head_dim + call.v_dim);
    for (int head = 0; head < call.kv_heads; ++head) {
      // Last tokens first: in a causal mask they have the most keys.
      for (int end = q_len; end > 0; end -= tile_tokens) {
        const int first = std::max(0, end - tile_tokens);
        tiles.push_back({r, head, first, end - first, 0, 0, 0});
      }
    }
  }
  return tiles;
}

TileScratch& thread_scratch() {
  thread_local TileScratch scratch;
  return scratch;
}

float* thread_states(int64_t floats) {
  thread_local Floats memory;
  memory.grow(floats);
  return memory.data();
}

template <typename T>
void run_tile(const AttentionCall<T>& call, const TileSpan& span) {
  AttentionTile<T> tile(call, thread_scratch(), span.request, span.kv_head, span.first_token,
                        span.tokens);
  const int64_t size = RowStates::floats(tile.lanes(), tile.v_width());
  float* memory = thread_states(2 * size);
  const RowStates total = RowStates::at(memory, tile.lanes(), tile.v_width());
  const RowStates part = RowStates::at(memory + size, tile.lanes(), tile.v_width());
  total.clear(tile.lanes(), tile.v_width());
  for (int64_t chunk = tile.first_chunk(); chunk < tile.end_chunk(); ++chunk) {
    tile.compute_chunk(chunk, part);
    tile.merge(total, part);
  }
  tile.write(total);
}

// Few tiles, many keys: the chunks of every tile in parallel, merged afterwards in their order.
template <typename T>
void run_chunks(const AttentionCall<T>& call, std::vector<TileSpan>& tiles) {
  struct Item {
    int tile;
    int64_t chunk;
  };
  std::vector<Item> items;
  int64_t floats = 0;
  const auto open = [&](const TileSpan& span) {
    return AttentionTile<T>(call, thread_scratch(), span.request, span.kv_head, span.first_token,
                            span.tokens);
  };
  int v_width = 0;
  for (size_t i = 0; i < tiles.size(); ++i) {
    const AttentionTile<T> tile = open(tiles[i]);
    v_width = tile.v_width();
    tiles[i].first_chunk = tile.first_chunk();
    tiles[i].end_chunk = tile.end_chunk();
    tiles[i].memory = floats;
    for (int64_t chunk = tile.first_chunk(); chunk < tile.end_chunk(); ++chunk) {
      items.push_back({int(i), chunk});
      floats += RowStates::floats(tile.lanes(), v_width);
    }
  }
  Floats memory;
  memory.grow(floats);
  const auto state = [&](const AttentionTile<T>& tile, const TileSpan& span, int64_t chunk) {
    const int64_t size = RowStates::floats(tile.lanes(), v_width);
    return RowStates::at(memory.data() + span.memory + (chunk - span.first_chunk) * size,
                         tile.lanes(), v_width);
  };
  for_each_item(int64_t(items.size()), true, [&](int64_t i) {
    const TileSpan& span = tiles[items[i].tile];
    AttentionTile<T> tile = open(span);
    tile.compute_chunk(items[i].chunk, state(tile, span, items[i].chunk));
  });
  for (const TileSpan& span : tiles) {
    AttentionTile<T> tile = open(span);
    const RowStates total = RowStates::at(thread_states(RowStates::floats(tile.lanes(), v_width)),
                                          tile.lanes(), v_width);
    total.clear(tile.lanes(), v_width);
    for (int64_t chunk = span.first_chunk; chunk < span.end_chunk; ++chunk) {
      tile.merge(total, state(tile, span, chunk));
    }
    tile.write(total);
  }
}

template <typename T>
void run(const AttentionCall<T>& call) {
  int64_t work = 0;
  std::vector<TileSpan> tiles = cut_tiles(call, work);
  const bool is_much = work >= kSerialWork;
  if (is_much && int64_t(tiles.size()) < at::get_num_threads()) {
    run_chunks(call, tiles);
  } else {
    for_each_item(int64_t(tiles.size()), is_much, [&](int64_t i) { run_tile(call, tiles[i]); });
  }
}

template <typename T>
void launch(const at::Tensor& q, const at::Tensor& k_cache, const at::Tensor& v_cache,
            at::Tensor& out, const at::Tensor& slot_table, const at::Tensor& table_rows,
            const std::optional<at::Tensor>& slot_map, const at::Tensor& q_starts,
            const at::Tensor& kv_lens, int64_t mask_mode,
            const std::optional<at::Tensor>& tree_mask,
            const std::optional<at::Tensor>& mask_offsets,
            const std::optional<at::Tensor>& mask_strides, int64_t window, double scale,
            double logit_cap, const std::optional<at::Tensor>& sinks) {
  TORCH_CHECK_VALUE(
      slot_table.dim() == 2 && slot_table.scalar_type() == at::kInt && slot_table.stride(1) == 1,
      "paged_attention expects an int32 slot table [rows, columns], got ", slot_table.sizes(), " ",
      slot_table.scalar_type());
  const int64_t bs = kv_lens.numel();
  check_plan_vector("kv_lens", kv_lens, bs);
  check_plan_vector("table_rows", table_rows, bs);
  check_plan_vector("q_starts", q_starts, bs + 1);
  if (slot_map) check_plan_vector("slot_map", *slot_map, slot_map->numel());
  if (MaskMode(mask_mode) == MaskMode::kTree) {
    TORCH_CHECK_VALUE(tree_mask && mask_offsets && mask_strides &&
                          tree_mask->scalar_type() == at::kBool && tree_mask->is_contiguous(),
                      "paged_attention expects a flat bool mask with offsets and strides");
    check_plan_vector("mask_offsets", *mask_offsets, bs);
    check_plan_vector("mask_strides", *mask_strides, bs);
  }
  AttentionCall<T> call;
  call.q = static_cast<const T*>(q.const_data_ptr());
  call.k_cache = static_cast<const T*>(k_cache.const_data_ptr());
  call.v_cache = static_cast<const T*>(v_cache.const_data_ptr());
  call.out = static_cast<T*>(out.mutable_data_ptr());
  call.q_stride = q.stride(0), call.q_head_stride = q.stride(1);
  call.k_stride = k_cache.stride(0), call.k_head_stride = k_cache.stride(1);
  call.v_stride = v_cache.stride(0), call.v_head_stride = v_cache.stride(1);
  call.out_stride = out.stride(0), call.out_head_stride = out.stride(1);
  call.heads = int(q.size(1)), call.kv_heads = int(k_cache.size(1));
  call.head_dim = int(q.size(2)), call.v_dim = int(v_cache.size(2));
  call.requests = int(kv_lens.size(0));
  call.slot_table = slot_table.const_data_ptr<int32_t>();
  call.table_stride = slot_table.stride(0);
  call.table_rows = table_rows.const_data_ptr<int64_t>();
  call.slot_map = slot_map ? slot_map->const_data_ptr<int64_t>() : nullptr;
  call.q_starts = q_starts.const_data_ptr<int64_t>();
  call.kv_lens = kv_lens.const_data_ptr<int64_t>();
  call.mask_mode = MaskMode(mask_mode);
  call.tree_mask = tree_mask ? tree_mask->const_data_ptr<bool>() : nullptr;
  call.mask_offsets = mask_offsets ? mask_offsets->const_data_ptr<int64_t>() : nullptr;
  call.mask_strides = mask_strides ? mask_strides->const_data_ptr<int64_t>() : nullptr;
  call.window = window;
  call.scale = float(scale), call.logit_cap = float(logit_cap);
  call.sinks = sinks ? sinks->const_data_ptr<float>() : nullptr;
  const PlanBounds bounds{q.size(0),
                          slot_table.size(0),
                          slot_table.size(1),
                          slot_map ? slot_map->numel() : 0,
                          std::min(k_cache.size(0), v_cache.size(0)),
                          tree_mask ? tree_mask->numel() : 0};
  for (int r = 0; r < call.requests; ++r) check_request(call, bounds, r);
  run(call);
}

void paged_attention(const at::Tensor& q, const at::Tensor& k_cache, const at::Tensor& v_cache,
                     at::Tensor& out, const at::Tensor& slot_table, const at::Tensor& table_rows,
                     const std::optional<at::Tensor>& slot_map, const at::Tensor& q_starts,
                     const at::Tensor& kv_lens, int64_t mask_mode,
                     const std::optional<at::Tensor>& tree_mask,
                     const std::optional<at::Tensor>& mask_offsets,
                     const std::optional<at::Tensor>& mask_strides, int64_t window, double scale,
                     double logit_cap, const std::optional<at::Tensor>& sinks) {
  const auto run_as = [&](auto launcher) {
    launcher(q, k_cache, v_cache, out, slot_table, table_rows, slot_map, q_starts, kv_lens,
             mask_mode, tree_mask, mask_offsets, mask_strides, window, scale, logit_cap, sinks);
  };
  switch (q.scalar_type()) {
    case at::kFloat:
      return run_as(launch<float>);
    case at::kBFloat16:
      return run_as(launch<BFloat16>);
    case at::kHalf:
      return run_as(launch<Float16>);
    default:
      TORCH_CHECK_VALUE(false, "paged_attention takes float32, bfloat16 or float16, got ",
                        q.scalar_type());
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(dflash2, CPU, m) { m.impl("paged_attention", paged_attention); }

}  // namespace dflash2
