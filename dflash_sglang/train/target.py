"""The frozen target as training sees it: tap features, embedding, head, and cached forwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .errors import TargetError
from .ragged_cache import GROUPED_ATTENTION, RaggedCache


class TargetOutput(NamedTuple):
    """What one forward of the target leaves behind."""

    hidden: Tensor  # [bs, t, D] behind the final norm: what the output head reads
    features: Tensor  # [bs, t, n_taps * D] concatenated tap layers; [bs, t, 0] without taps
    logits: Tensor | None  # [bs, t, V], when asked for


class Target:
    """A Hugging Face causal language model, frozen, in eval mode.

    Args:
        model: any `AutoModelForCausalLM` with attention layers only.
        tap_layer_ids: decoder layers whose output is a drafter feature; layer l means the output of
            decoder layer l, Hugging Face's `hidden_states[l + 1]`.

    Raises:
        TargetError: a tap beyond the target's depth, or a model without a plain stack of layers.
    """

    def __init__(self, model: nn.Module, tap_layer_ids: Sequence[int] = ()):
        self.model: Any = model.eval().requires_grad_(False)
        self.config = model.config.get_text_config()
        self.decoder = self.model.get_decoder()
        layers = getattr(self.decoder, "layers", None)
        if layers is None:
            raise TargetError(f"{type(model).__name__} has no list of decoder layers to tap")
        self.num_layers = len(layers)
        wrong = [i for i in tap_layer_ids if not 0 <= i < self.num_layers]
        if wrong:
            raise TargetError(f"tap layers {wrong} asked of a target of {self.num_layers} layers")
        self.tap_layer_ids = tuple(tap_layer_ids)
        self._taps: dict[int, Tensor] = {}
        for layer_id in self.tap_layer_ids:
            layers[layer_id].register_forward_hook(self._remember(layer_id))
        self.model.set_attn_implementation(GROUPED_ATTENTION)

    @classmethod
    def from_pretrained(
        cls,
        path: str,
        tap_layer_ids: Sequence[int] = (),
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> Target:
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
        return cls(model.to(device), tap_layer_ids)

    @property
    def device(self) -> torch.device:
        return self.embedding_weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding_weight.dtype

    @property
    def embedding_weight(self) -> Tensor:
        """[V, D], rows as stored: a target's own scaling of them is the drafter config's affair."""
        return self.model.get_input_embeddings().weight

    @property
    def head_weight(self) -> Tensor:
        return self.model.get_output_embeddings().weight  # [V, D]

    @property
    def head_bias(self) -> Tensor | None:
        return getattr(self.model.get_output_embeddings(), "bias", None)  # [V]

    def head(self, hidden: Tensor) -> Tensor:
        """Bare output head (no cap, no scale): hidden [..., D] -> [..., V]."""
        return F.linear(hidden, self.head_weight, self.head_bias)

    def new_cache(self, capacity: int) -> RaggedCache:
        return RaggedCache(self.num_layers, capacity)

    @torch.no_grad()
    def read(self, tokens: Tensor) -> TargetOutput:
        """Features of whole texts: tokens [bs, T], padded on the right."""
        bs, length = tokens.shape
        positions = torch.arange(length, device=tokens.device)
        causal = positions[None, :] <= positions[:, None]  # [T, T]
        return self._forward(
            tokens, positions.expand(bs, -1), causal.expand(bs, -1, -1), positions, None, False
        )

    @torch.no_grad()
    def step(
        self,
        tokens: Tensor,
        positions: Tensor,
        visible: Tensor,
        cache: RaggedCache,
        slots: Tensor,
        slot_positions: Tensor,
        with_logits: bool = True,
    ) -> TargetOutput:
        """One cached forward over new tokens of every row.

        Args:
            tokens, positions, slots: [bs, t] ids, absolute positions, cache slots of the new.
            visible: [bs, t, S] bool over the cache's first S slots, the new ones included.
            slot_positions: [bs, S] or [S] absolute position of each slot, for sliding layers.
        """
        cache.place(slots, visible.shape[-1])
        return self._forward(tokens, positions, visible, slot_positions, cache, with_logits)

    def _forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        visible: Tensor,
        key_positions: Tensor,
        cache: RaggedCache | None,
        with_logits: bool,
    ) -> TargetOutput:
        module = self.model if with_logits else self.decoder
        out = module(
            input_ids=tokens,
            position_ids=positions,
            attention_mask=self._masks(positions, visible, key_positions),
            past_key_values=cache,
            use_cache=cache is not None,
            **({"output_hidden_states": False} if with_logits else {}),
        )
        taps = [self._taps.pop(i) for i in self.tap_layer_ids]
        empty = self.embedding_weight.new_zeros((*tokens.shape, 0))
        features = torch.cat(taps, dim=-1) if taps else empty
        hidden = empty if with_logits else out.last_hidden_state
        return TargetOutput(hidden, features, out.logits if with_logits else None)

    def _masks(self, positions: Tensor, visible: Tensor, key_positions: Tensor):
        full = visible[:, None]  # [bs, 1, t, S]
        if "sliding_attention" not in (getattr(self.config, "layer_types", None) or ()):
            return full
        distance = positions[:, :, None] - key_positions.expand(positions.shape[0], -1)[:, None, :]
        near = distance < self.config.sliding_window  # [bs, t, S]
        return {"full_attention": full, "sliding_attention": (visible & near)[:, None]}

    def _remember(self, layer_id: int):
        def hook(_module, _args, output):
            self._taps[layer_id] = output[0] if isinstance(output, tuple) else output

        return hook
