"""The target's embedding and output head, borrowed by the drafter.

They are reached through SGLang's own modules, so that tied heads, padded or added vocabulary, a
vocabulary split over ranks and quantized heads work as they do for the target itself.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.distributed.parallel_state import get_tp_group
from sglang.srt.layers.logits_processor import should_apply_lm_head_quant_method
from sglang.srt.layers.vocab_parallel_embedding import VocabParallelEmbedding
from sglang.srt.lora.layers import unwrap_lora_layer
from torch import nn
from torch.nn import functional

from dflash_sglang.kernels.linear import linear


class TargetVocabulary:
    """Embedding and head of one target model.

    Args:
        model: a causal language model of SGLang's.
        vocab_size: V, tokens without the padding of the table.

    Raises:
        ValueError: the model's input embedding is of a kind that cannot be looked up unscaled.
    """

    def __init__(self, model: nn.Module, vocab_size: int) -> None:
        self._embedding = unwrap_lora_layer(model.get_input_embeddings())
        self._head = unwrap_lora_layer(getattr(model, "lm_head", None) or self._embedding)
        self.size = vocab_size
        self._group = get_tp_group()  # the target's, which the vocabulary is split over
        if not isinstance(self._embedding, VocabParallelEmbedding | nn.Embedding):
            raise ValueError(
                "dflash2 borrows the target's embedding: expected a VocabParallelEmbedding or an "
                f"nn.Embedding from {type(model).__name__}, got {type(self._embedding).__name__}."
            )

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Raw rows of the embedding table: tokens [...] int64 -> [..., D].

        Raw, because a drafter is trained on them: a scale that the target applies behind the table
        (Gemma's square root of D) is the checkpoint's ``input_embedding_scale`` where it was used.
        """
        if not isinstance(self._embedding, VocabParallelEmbedding):
            return functional.embedding(tokens, self._embedding.weight)
        # Not its forward: that reduces over whatever group is in force, and while a replicated
        # drafter runs that is this rank alone.
        rows = self._embedding._embed_local_shard(tokens)
        return self._group.all_reduce(rows) if self._group.world_size > 1 else rows

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Head of the target: hidden [..., D] -> logits [..., V] in the head's dtype.

        On several ranks each computes its shard and the shards are gathered.
        """
        if self._is_quantized():
            quant_method: Any = self._head.quant_method
            logits = quant_method.apply(self._head, hidden, None)
        else:
            logits = project(hidden, self._head.weight)
        if self._group.world_size > 1:
            logits = self._group.all_gather(logits, dim=-1)
        # Padding of the vocabulary stands behind its last token.
        return logits[..., : self.size]

    def head_rows(self, tokens: torch.Tensor) -> torch.Tensor:
        """A copy of the head's rows of ``tokens`` [R] int64, whole on every rank: [R, D].

        Raises:
            ValueError: the head is quantized, so that its rows do not stand for themselves.
        """
        if self._is_quantized():
            raise ValueError(
                "a draft vocabulary takes rows of the target's head as they are, and this head is "
                "quantized: serve with --dflash2-config '{\"draft_vocabulary\": false}'."
            )
        weight = self._head.weight.detach()
        places = tokens - self._group.rank_in_group * weight.shape[0]
        is_here = (places >= 0) & (places < weight.shape[0])
        rows = weight[places.clamp(0, weight.shape[0] - 1)] * is_here[:, None]
        return self._group.all_reduce(rows) if self._group.world_size > 1 else rows

    @property
    def device(self) -> torch.device:
        return self._embedding.weight.device

    def _is_quantized(self) -> bool:
        method = getattr(self._head, "quant_method", None)
        return should_apply_lm_head_quant_method(self._head, method)


def project(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """hidden [..., D] times weight [rows, D] -> [..., rows] in the weight's dtype."""
    product = linear if weight.is_cpu else functional.linear
    return product(hidden.to(weight.dtype), weight)
