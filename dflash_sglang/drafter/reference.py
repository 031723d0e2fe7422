"""Speculative decoding of one request with a transformers target: what the engine has to do.

This is the specification of the decode step, written to be read. It is not fast: every node of the
tree is verified as a row of its own, its path from the root, so that no mask is needed and every
architecture of transformers can be the target. Method: DFlash (arXiv:2602.06036), candidates of
DFlash 2, a tree of them, and verification with shared noise.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DynamicCache

from dflash_sglang.drafter.attention import ContextKV, DenseAttention
from dflash_sglang.drafter.model import DFlash2Drafter
from dflash_sglang.drafter.vocabulary import spread_logits
from dflash_sglang.tree import (
    DraftTree,
    Truncation,
    build_noisy_lattice,
    build_tree,
    make_layout,
    noisy_candidates,
    noisy_edges,
)
from dflash_sglang.verify import NoiseKeys, sampled_tokens, walk


class Window(NamedTuple):
    """How far and how wide to speculate."""

    num_nodes: int = 16  # verified in a step, root included
    max_depth: int = 7  # of a node; at most the drafter's block size - 1
    max_children: int = 4  # of a node; 1 makes a chain
    plain_top_k: int = 8  # candidates a position of a drafter without selector
    num_others: int = 8  # candidates that only the noise favours, a position
    draft_vocabulary: tuple[int, ...] | None = None  # tokens that drafts are made of; None: all


class Sampling(NamedTuple):
    """The law that tokens follow, and the seed that picks one of them."""

    temperature: float = 0.0  # 0 is greedy
    seed: int = 0
    top_k: int | None = None
    top_p: float = 1.0


class Generation(NamedTuple):
    """What a request got."""

    tokens: list[int]  # after the prompt
    accept_lens: list[int]  # of each verify step: accepted draft tokens + 1, all of them


class Verified(NamedTuple):
    """What the target says about the nodes of a tree."""

    logits: Tensor  # [N, V] float32, after each node
    features: Tensor  # [N, D + 1, n D], tapped hidden states along each node's path


@torch.inference_mode()
def generate(
    target: Any,
    drafter: DFlash2Drafter,
    prompt: Tensor,
    max_new_tokens: int,
    window: Window | None = None,
    sampling: Sampling | None = None,
    stop_token_ids: Collection[int] = (),
) -> Generation:
    """Continue ``prompt [T]`` int64 by at most ``max_new_tokens`` tokens.

    ``target`` is a causal language model of transformers. The tokens are those of plain decoding
    with the same ``sampling``, whatever the drafter proposes; a stop token ends them and is kept.
    """
    request = _Request(target, drafter, window or Window(), sampling or Sampling())
    tokens = [request.prefill(prompt)]
    accept_lens: list[int] = []
    while len(tokens) < max_new_tokens and tokens[-1] not in stop_token_ids:
        delivered = request.step(tokens[-1])
        accept_lens.append(len(delivered))
        tokens += _until_stop(delivered, stop_token_ids)
    return Generation(tokens[:max_new_tokens], accept_lens)


class _Request:
    """The state of one request between steps: the target's cache and the drafter's context.

    Both cover the same positions, all before the anchor, which is the last token delivered.
    """

    context: ContextKV

    def __init__(
        self, target: Any, drafter: DFlash2Drafter, window: Window, sampling: Sampling
    ) -> None:
        self.target, self.drafter, self.window = target, drafter, window
        self.device = target.device
        self.cache = DynamicCache()  # without a config, so that sliding layers can be cropped too
        self.vocab_size = target.get_output_embeddings().weight.shape[0]
        self.seeds = torch.tensor([sampling.seed], device=self.device)
        self.temperatures = torch.tensor([sampling.temperature], device=self.device)
        self.truncation = self._truncation(sampling)

    def prefill(self, prompt: Tensor) -> int:
        """The prompt through the target: the first token, and the context of the drafter."""
        output = self._forward(prompt[None].to(self.device))
        self.context = self._inject(_tapped(output, self.drafter)[0], start=0)
        last = torch.zeros((1, 1), dtype=torch.int64, device=self.device)  # a tree of one node
        noise = self._noise(prompt.shape[0] - 1, count=1)
        return int(self._draw(output.logits[:, -1:].float(), noise, depths=last))

    def step(self, anchor: int) -> list[int]:
        """Draft, build the tree, verify, walk, commit: the accepted tokens and the bonus token."""
        prefix = self.cache.get_seq_length()  # the position of the anchor
        depth = self.window.max_depth
        noise = self._noise(prefix, count=depth + 1)
        tree = self._draft(torch.tensor([anchor], device=self.device), prefix, noise)

        verified = self._verify(tree, prefix)
        drawn = self._draw(verified.logits[None], noise, tree.depths)  # [1, N]
        verdict = walk(tree, drawn, depth)

        length = int(verdict.accept_lens)
        last = int(verdict.node_path[0, length - 1])  # its row holds the whole accepted path
        self.cache.batch_select_indices(torch.tensor([last], device=self.device))
        self.cache.crop(prefix + length - self.cache.get_seq_length())
        new = self._inject(verified.features[last, :length], start=prefix)
        self.context = self.context.append(new)
        return verdict.tokens[0, :length].tolist()

    def _draft(self, anchor: Tensor, prefix: int, noise: NoiseKeys) -> DraftTree:
        """The block through the drafter, its best candidates, and the tree of the best of those."""
        drafter, window = self.drafter, self.window
        embeddings = drafter.block_embeddings(anchor, self._embed)  # [1, B, D]
        positions = torch.arange(prefix, prefix + embeddings.shape[1], device=self.device)
        core = DenseAttention(drafter.config, self.context)
        hidden = drafter(embeddings, positions[None], core)  # [1, B, D]
        hidden = hidden[:, drafter.config.draft_positions()][:, : window.max_depth]  # [1, g, D]
        logits = drafter.unary_logits(hidden, self._head)  # [1, g, V]
        if window.draft_vocabulary is not None:
            listed = torch.tensor(window.draft_vocabulary, device=self.device)
            logits = spread_logits(logits[..., listed], listed, self.vocab_size)

        selector = drafter.selector
        candidates = noisy_candidates(
            logits,
            noise,
            self.temperatures,
            window.plain_top_k if selector is None else selector.top_k,
            window.num_others,
            self.truncation,
        )
        pair_scores = None
        if selector is not None:
            pair_scores = selector.pair_scores(
                hidden, anchor, candidates.tokens, candidates.unary_logits
            )
        lattice = build_noisy_lattice(noisy_edges(candidates, pair_scores))
        return build_tree(lattice, anchor, window.num_nodes, window.max_depth, window.max_children)

    def _verify(self, tree: DraftTree, prefix: int) -> Verified:
        """Every node's path through the target, one row a node, behind the shared prefix."""
        depths = tree.depths[0]  # [N]
        seen = make_layout(tree, torch.tensor([prefix], device=self.device)).mask[0]  # [N, N]
        nodes, ancestors = seen.nonzero(as_tuple=True)
        # Behind a node its row is filled up with anchors, which nothing before them attends to.
        paths = tree.tokens[0, 0].repeat(len(depths), int(depths.max()) + 1)  # [N, D + 1]
        paths[nodes, depths[ancestors]] = tree.tokens[0, ancestors]

        self.cache.batch_repeat_interleave(len(depths))
        output = self._forward(paths)
        rows = torch.arange(len(depths), device=self.device)
        return Verified(output.logits[rows, depths].float(), _tapped(output, self.drafter))

    def _forward(self, tokens: Tensor) -> Any:
        """tokens [rows, length] behind the cache, which grows by them."""
        return self.target(
            tokens, past_key_values=self.cache, use_cache=True, output_hidden_states=True
        )

    def _inject(self, features: Tensor, start: int) -> ContextKV:
        """features [T, n D] of the positions from ``start`` -> their keys and values."""
        positions = torch.arange(start, start + features.shape[0], device=self.device)
        context = self.drafter.project_features(features)
        return self.drafter.context_keys_values(context, positions)

    def _draw(self, logits: Tensor, noise: NoiseKeys, depths: Tensor) -> Tensor:
        """logits [1, N, V], keys by depth, depths [1, N] -> the target's token a node, [1, N]."""
        return sampled_tokens(logits, self.temperatures, noise, depths, self.truncation)

    def _noise(self, position: int, count: int) -> NoiseKeys:
        """Keys [1, count] of the tokens drawn after ``position`` and the following ones."""
        positions = torch.arange(position, position + count, device=self.device)[None]
        return NoiseKeys(self.seeds, positions)

    def _truncation(self, sampling: Sampling) -> Truncation | None:
        if sampling.top_k is None and sampling.top_p == 1.0:
            return None
        top_k = self.vocab_size if sampling.top_k is None else sampling.top_k
        return Truncation(
            torch.tensor([top_k], device=self.device),
            torch.tensor([sampling.top_p], device=self.device),
        )

    def _embed(self, tokens: Tensor) -> Tensor:
        """Raw rows of the target's table: a module's own scale (Gemma) is not wanted."""
        return F.embedding(tokens, self.target.get_input_embeddings().weight)

    def _head(self, hidden: Tensor) -> Tensor:
        head = self.target.get_output_embeddings()
        return head(hidden.to(head.weight.dtype))


def _tapped(output: Any, drafter: DFlash2Drafter) -> Tensor:
    """The target's hidden states at the tapped layers, [rows, length, n D]."""
    # hidden_states[0] is the embedding, so layer l's output is entry l + 1.
    taps = [output.hidden_states[layer + 1] for layer in drafter.config.target_layer_ids]
    return torch.cat(taps, dim=-1)


def _until_stop(tokens: list[int], stop_token_ids: Collection[int]) -> list[int]:
    for count, token in enumerate(tokens, start=1):
        if token in stop_token_ids:
            return tokens[:count]
    return tokens
