"""The drafter as a model of SGLang's: the one module of ``dflash_sglang.drafter``, its attention
core exchanged for RadixAttention over the slots that the target's KV uses too.

Every rank holds the whole drafter, so drafting needs no communication.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.layers.radix_attention import AttentionType, RadixAttention
from sglang.srt.model_executor.forward_batch_info import ForwardBatch
from sglang.srt.models.registry import ModelRegistry
from torch import nn

from dflash_sglang.config import DFlash2Config
from dflash_sglang.config.schema import ARCHITECTURES
from dflash_sglang.drafter.checkpoint import canonical_name, check_tensors
from dflash_sglang.drafter.model import DFlash2Drafter
from dflash_sglang.engine.vocabulary import TargetVocabulary
from dflash_sglang.kernels import library


class RadixCore:
    """Attention core of one forward: the block against itself and the request's cached context."""

    def __init__(self, layers: nn.ModuleList, forward_batch: ForwardBatch) -> None:
        self._layers = layers
        self._forward_batch = forward_batch

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        """See :class:`dflash_sglang.drafter.attention.AttentionCore`; q is [bs, B, H, d]."""
        out = self._layers[layer](
            q.reshape(-1, q.shape[2] * q.shape[3]),  # [bs * B, H * d]
            k.reshape(-1, k.shape[2] * k.shape[3]),
            v.reshape(-1, v.shape[2] * v.shape[3]),
            self._forward_batch,
        )
        return out.view(q.shape)


class DFlash2DraftModel(nn.Module):
    """Drafter served by SGLang's draft runner.

    Args:
        config: the checkpoint as transformers parsed it. The drafter is built from our own parse,
            given to :func:`install`, because transformers rewrites some of the fields.
    """

    def __init__(self, config: Any, quant_config: object = None, prefix: str = "") -> None:
        super().__init__()
        if quant_config is not None:
            raise ValueError(
                "dflash2 serves a drafter in its own dtype: expected a drafter without "
                f"quantization_config, got {type(quant_config).__name__}."
            )
        self.config = config
        self.drafter = DFlash2Drafter(_installed.config)
        self.attention = nn.ModuleList(
            _radix_attention(_installed.config, layer)
            for layer in range(_installed.config.num_hidden_layers)
        )
        self._embed = _installed.vocabulary.embed

    @torch.no_grad()
    def forward(
        self,
        input_ids: torch.Tensor,  # [bs * B] anchor and mask tokens
        positions: torch.Tensor,  # [bs * B]
        forward_batch: ForwardBatch,
        **_: object,
    ) -> LogitsProcessorOutput:
        """Final hidden states of each block position, [bs * B, D]; the head is the target's."""
        block = self.drafter.config.block_size
        # Looked up here and not handed over: SGLang's runner casts input_embeds to bfloat16.
        embeddings = self.drafter.block_embeddings(input_ids.view(-1, block)[:, 0], self._embed)
        hidden = self.drafter(
            embeddings, positions.view(-1, block), RadixCore(self.attention, forward_batch)
        )
        return LogitsProcessorOutput(next_token_logits=None, hidden_states=hidden.flatten(0, 1))

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Load the published names; missing, unexpected or misshapen tensors are an error."""
        parameters = dict(self.drafter.named_parameters())
        loaded = {canonical_name(name): tensor for name, tensor in weights}
        check_tensors(loaded, parameters, self.config.name_or_path)
        for name, parameter in parameters.items():
            parameter.data.copy_(loaded[name])
        device = self.drafter.norm.weight.device
        mode = library.serve(device.type)
        # On the CPU the references too are batch-invariant, as the rest of the host is.
        self.drafter.freeze(fused=mode == "compiled" or device.type == "cpu")


class Installed(NamedTuple):
    """What the model is built from beside its weights."""

    config: DFlash2Config
    vocabulary: TargetVocabulary


# ModelRegistry instantiates the class itself, with transformers' parse of the config only.
_installed: Installed


def install(config: DFlash2Config, vocabulary: TargetVocabulary) -> None:
    """Serve drafter checkpoints with :class:`DFlash2DraftModel` in this process.

    SGLang has a drafter class of its own under the same names; its built-in DFLASH keeps it, since
    only a process that serves dflash2 calls this.

    Args:
        config: the drafter's checkpoint.
        vocabulary: embedding and head of the target.
    """
    global _installed
    _installed = Installed(config, vocabulary)
    for name in ARCHITECTURES:
        ModelRegistry.models[name] = DFlash2DraftModel


def _radix_attention(config: DFlash2Config, layer: int) -> RadixAttention:
    window = config.layer_window(layer)
    return RadixAttention(
        num_heads=config.num_attention_heads,
        head_dim=config.head_dim,
        scaling=config.head_dim**-0.5,
        num_kv_heads=config.num_key_value_heads,
        layer_id=layer,
        # A checkpoint's window counts the query's own token, SGLang's does not.
        sliding_window_size=-1 if window is None else window - 1,
        attn_type=AttentionType.DECODER if config.causal[layer] else AttentionType.ENCODER_ONLY,
    )
