"""The drafter: from a target's tapped hidden states and a block of masks to draft hidden states."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from dflash_sglang.config import DFlash2Config
from dflash_sglang.drafter.attention import AttentionCore, ContextKV
from dflash_sglang.drafter.convolution import GroupedDynamicConv, StaticConv
from dflash_sglang.drafter.injection import ContextProjection
from dflash_sglang.drafter.layers import DrafterLayer
from dflash_sglang.drafter.primitives import Linear, RMSNorm
from dflash_sglang.drafter.rotary import RotaryEmbedding, rotate
from dflash_sglang.drafter.selector import CandidateSelector

INITIALIZER_RANGE = 0.02  # Qwen3's

# What this project's kernels compute: on every device, and on the CPU alone.
_FUSED = (GroupedDynamicConv, StaticConv, CandidateSelector)
_FUSED_ON_CPU = (Linear, RMSNorm, RotaryEmbedding)


class DFlash2Drafter(nn.Module):
    """DFlash (arXiv:2602.06036) and DFlash 2. Parameters carry the names of published checkpoints.

    Embedding and output head are the target's; the caller looks up and projects. Everything is
    computed in the parameters' dtype, except that rotary angles and logits are float32.
    """

    def __init__(self, config: DFlash2Config) -> None:
        super().__init__()
        self.config = config
        taps = len(config.target_layer_ids)
        self.fc = Linear(taps * config.target_hidden_size, config.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.layers = nn.ModuleList(DrafterLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary = RotaryEmbedding(config.rope)
        self.candidate_selector: CandidateSelector | None = None
        if config.selector is not None:
            self.candidate_selector = CandidateSelector(
                config.hidden_size, config.vocab_size, config.selector
            )
        self.context_projection: ContextProjection | None = None  # kept by freeze()
        self.apply(_initialize)

    def freeze(self, *, fused: bool = False) -> DFlash2Drafter:
        """Make ready to serve: no gradients, and products of one input stacked once for all.

        The weights must not change afterwards; ``train()`` lifts that again. ``fused`` computes
        with this project's kernels, which ``kernels.library.serve`` loads.
        """
        self.eval().requires_grad_(False)
        self._fuse(fused)
        for layer in self.layers:
            layer.self_attn.stack()
            layer.mlp.stack()
        self.context_projection = self._stacked_projection()
        return self

    def train(self, mode: bool = True) -> DFlash2Drafter:
        """As in torch; a drafter that trains keeps no copies of its weights."""
        if mode:
            self._fuse(False)
            for layer in self.layers:
                layer.self_attn.stacked = layer.mlp.stacked = None
            self.context_projection = None
        return super().train(mode)

    def _fuse(self, fused: bool) -> None:
        kinds = (*_FUSED, *_FUSED_ON_CPU) if self.norm.weight.is_cpu else _FUSED
        for module in self.modules():
            if isinstance(module, kinds):
                module.fused = fused

    @property
    def selector(self) -> CandidateSelector | None:
        """The candidate selector of DFlash 2; None for a plain DFlash drafter."""
        return self.candidate_selector

    def project_features(self, features: Tensor) -> Tensor:
        """``H_t = RMSNorm(W_c [H^(l1); ...; H^(ln)])``.

        ``features [..., n_taps * D]``: outputs of the tapped target layers, concatenated in the
        order of ``target_layer_ids``. Returns the context ``[..., D]`` in the drafter's dtype.
        Raises ValueError when the width does not fit.
        """
        if features.shape[-1] != self.fc.in_features:
            raise ValueError(
                f"The drafter expects context features of width {self.fc.in_features} "
                f"({len(self.config.target_layer_ids)} taps x {self.config.hidden_size}), "
                f"got {features.shape[-1]}."
            )
        return self.hidden_norm(self.fc(features.to(self.fc.weight.dtype)))

    def context_keys_values(self, context: Tensor, positions: Tensor) -> ContextKV:
        """Keys and values that the context injects into all layers.

        ``context [T, D]`` from :meth:`project_features`, ``positions [T]`` integer (absolute).
        """
        project = self.context_projection
        if project is None:
            project = self._stacked_projection()
        keys, values = project(context)
        rotation = self.rotary(positions, keys.dtype, ahead=self.config.block_size)
        return ContextKV(rotate(keys, rotation), values)

    def forward(self, embeddings: Tensor, positions: Tensor, attention: AttentionCore) -> Tensor:
        """Hidden states of the blocks, final norm applied.

        ``embeddings [n, B, D]`` from :meth:`block_embeddings`; ``positions [n, B]`` integer
        (absolute); ``attention`` sees the context. Returns ``[n, B, D]``; position j stands for the
        token at anchor + j (anchor + j + 1 with ``shift_label``).
        """
        rotation = self.rotary(positions, embeddings.dtype)
        hidden = embeddings
        for index, layer in enumerate(self.layers):
            hidden = layer(hidden, rotation, partial(attention, index))
        return self.norm(hidden)

    def unary_logits(self, hidden: Tensor, head: Callable[[Tensor], Tensor]) -> Tensor:
        """``hidden [..., D]`` through the target's output head -> float32 logits ``[..., V]``, with
        the checkpoint's multiplier and soft cap."""
        logits = head(hidden).float()
        if self.config.output_multiplier != 1.0:
            logits = logits * self.config.output_multiplier
        cap = self.config.final_logit_softcapping
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def block_tokens(self, anchors: Tensor) -> Tensor:
        """``anchors [n]`` int64 -> blocks ``[n, B]`` int64: the anchor, then mask tokens."""
        blocks = anchors.new_full(
            (anchors.shape[0], self.config.block_size), self.config.mask_token_id
        )
        blocks[:, 0] = anchors
        return blocks

    def block_embeddings(self, anchors: Tensor, embed: Callable[[Tensor], Tensor]) -> Tensor:
        """The blocks' input ``[n, B, D]`` in the drafter's dtype.

        ``embed`` looks up raw rows of the target's table: a scale that the target itself applies
        (Gemma) must not be in it, ``input_embedding_scale`` takes that place.
        """
        rows = embed(self.block_tokens(anchors)).to(self.norm.weight.dtype)
        scale = self.config.input_embedding_scale
        return rows if scale == 1.0 else rows * scale

    def _stacked_projection(self) -> ContextProjection:
        return ContextProjection(self.config, [layer.self_attn for layer in self.layers])


def _initialize(module: nn.Module) -> None:
    """Initial weights for training; modules with an initialisation of their own keep it."""
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=INITIALIZER_RANGE)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif reset := getattr(module, "reset_parameters", None):
        reset()  # after its children: nn.Module.apply visits a module last
