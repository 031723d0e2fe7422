"""SGLang attention backend ``dflash2_cpu``: plain decoding, prefill, tree verification, drafting.

One kernel serves every mode, because in each of them a request's keys are the first ``kv_len``
slots of its row in the request table and its query tokens are the last of these. What differs is
how many query tokens there are and what they see of each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

from dflash_sglang.host import ATTENTION_BACKEND
from dflash_sglang.kernels import library
from dflash_sglang.kernels.attention import AttentionPlan, BlockMask, MaskMode, paged_attention

if TYPE_CHECKING:
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner

_BIDIRECTIONAL_TYPES = (AttentionType.ENCODER_ONLY, AttentionType.DECODER_BIDIRECTIONAL)


class CPUAttentionBackend(AttentionBackend):
    """Attention on the CPU with tree masks, sliding windows, sinks and logit caps.

    ``TARGET_VERIFY`` batches are described by ``forward_batch.spec_info``: ``draft_token_num``
    tokens N a request, and the visibility among them as ``tree_mask`` ([bs, N, N] bool) or, in
    SGLang's own layout, ``custom_mask`` (flat bool, [N, prefix + N] of each request one after
    another). With neither, the tokens are a chain. Layers of type ``ENCODER_ONLY`` (a drafter's)
    see their whole block whatever the mask.
    """

    def __init__(self, model_runner: ModelRunner) -> None:
        super().__init__()
        if model_runner.model_config.is_encoder_decoder:
            raise ValueError(f"Attention backend {ATTENTION_BACKEND} expects a decoder-only model.")
        if model_runner.use_mla_backend:
            raise ValueError(
                f"Attention backend {ATTENTION_BACKEND} has no latent attention (MLA): expected a "
                "model whose heads have keys and values, got "
                f"{model_runner.model_config.model_path}."
            )
        library.serve("cpu")
        # Models look the pools up on the backend, under these names.
        self.token_to_kv_pool = model_runner.token_to_kv_pool
        self.req_to_token_pool = model_runner.req_to_token_pool
        self._swa_layers = _layers_in_window_pool(self.token_to_kv_pool)
        self._plan: AttentionPlan | None = None
        self._write_loc: KVWriteLoc | None = None

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        """Describe the batch once; every layer of the forward uses the same plan."""
        if forward_batch.forward_mode.is_idle():
            self._plan = None
            return
        self._plan = plan_batch(forward_batch, self.req_to_token_pool.req_to_token)
        loc = forward_batch.out_cache_loc
        swa_loc = None
        if self._swa_layers and loc is not None:
            swa_loc = self.token_to_kv_pool.translate_loc_from_full_to_swa(loc)
        self._write_loc = KVWriteLoc(loc, swa_loc)

    def init_forward_metadata_out_graph(
        self, forward_batch: ForwardBatch, in_capture: bool = False
    ) -> None:
        self.init_forward_metadata(forward_batch)

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        return 1

    def support_triton(self) -> bool:
        return False

    def forward_decode(self, q, k, v, layer, forward_batch, save_kv_cache=True, **options):
        """Same as :meth:`forward_extend`: one query token a request."""
        return self.forward_extend(q, k, v, layer, forward_batch, save_kv_cache, **options)

    def forward_extend(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Write the tokens' keys and values to their slots, then attend.

        Args:
            q: [tokens, heads * head_dim] (or with the heads apart).
            k: [tokens, kv_heads, head_dim], or None when the slots are already filled.
            v: [tokens, kv_heads, v_head_dim], or None.
            layer: whose cache, scale, window and attention type hold.
            forward_batch: the batch that :meth:`init_forward_metadata` saw.
            save_kv_cache: False leaves the cache as it is.
            sinks: [heads], extra logits of the softmax's denominator.

        Returns:
            [tokens, heads * v_head_dim], dtype of q.
        """
        if save_kv_cache and k is not None and v is not None:
            self.token_to_kv_pool.set_kv_buffer(layer, self._write_loc, k, v)
        plan = self._plan
        assert plan is not None
        out = q.new_empty(q.shape[0], layer.tp_q_head_num, layer.v_head_dim)
        paged_attention(
            q.view(-1, layer.tp_q_head_num, layer.qk_head_dim),
            self.token_to_kv_pool.get_key_buffer(layer.layer_id),
            self.token_to_kv_pool.get_value_buffer(layer.layer_id),
            out,
            plan,
            _mask_mode(layer, plan),
            scale=layer.scaling,
            window=layer.sliding_window_size,
            logit_cap=layer.logit_cap,
            sinks=None if sinks is None else sinks.float(),
            slot_map=(
                self.token_to_kv_pool.full_to_swa_index_mapping
                if layer.layer_id in self._swa_layers
                else None
            ),
        )
        return out.view(q.shape[0], -1)


def plan_batch(forward_batch: ForwardBatch, slot_table: torch.Tensor) -> AttentionPlan:
    """The kernel's view of a SGLang batch in any forward mode.

    Args:
        forward_batch: decode, extend (chunked and mixed alike) or target-verify batch.
        slot_table: [requests, longest] int32.
    """
    mode = forward_batch.forward_mode
    seq_lens = forward_batch.seq_lens.to(torch.int64)  # [bs]
    bs = seq_lens.shape[0]
    mask = None
    if mode.is_decode():
        q_starts = torch.arange(bs + 1)
        kv_lens = seq_lens
    elif mode.is_target_verify():
        width = int(forward_batch.spec_info.draft_token_num)
        q_starts = torch.arange(0, bs * width + 1, width)
        kv_lens = seq_lens + width  # SGLang counts the prefix only
        mask = _block_mask(forward_batch.spec_info, seq_lens, width)
    else:
        q_starts = torch.zeros(bs + 1, dtype=torch.int64)
        torch.cumsum(forward_batch.extend_seq_lens, 0, out=q_starts[1:])
        kv_lens = seq_lens
    rows = forward_batch.req_pool_indices.to(torch.int64)
    return AttentionPlan(slot_table, rows, q_starts, kv_lens, mask)


def _layers_in_window_pool(pool: Any) -> set[int]:
    if not isinstance(pool, SWAKVPool) or pool.swa_layer_nums == 0:
        return set()
    return {layer for layer, (_, windowed) in pool.layers_mapping.items() if windowed}


def _block_mask(spec_info: Any, prefix_lens: torch.Tensor, width: int) -> BlockMask | None:
    tree_mask = getattr(spec_info, "tree_mask", None)
    if tree_mask is not None:
        bs = prefix_lens.shape[0]
        if tree_mask.shape != (bs, width, width):
            raise ValueError(
                f"spec_info.tree_mask must be [{bs}, {width}, {width}], got "
                f"{list(tree_mask.shape)}."
            )
        return BlockMask(
            tree_mask.reshape(-1),
            torch.arange(0, bs * width * width, width * width),
            torch.full((bs,), width),
        )
    flat = getattr(spec_info, "custom_mask", None)
    if flat is None or flat.numel() == 0:
        return None
    row_lens = prefix_lens + width  # [bs] one row of a request's mask: prefix, then block
    sizes = row_lens * width
    if flat.numel() != int(sizes.sum()):
        raise ValueError(
            f"spec_info.custom_mask must hold [{width}, prefix + {width}] of every request, "
            f"{int(sizes.sum())} elements, got {flat.numel()}."
        )
    return BlockMask(flat.bool(), sizes.cumsum(0) - sizes + prefix_lens, row_lens)


def _mask_mode(layer: RadixAttention, plan: AttentionPlan) -> MaskMode:
    if layer.attn_type in _BIDIRECTIONAL_TYPES:
        return MaskMode.BIDIRECTIONAL
    return MaskMode.CAUSAL if plan.block_mask is None else MaskMode.TREE
