"""One realistic call of each operator of speculative decoding, for checks and timings."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dflash_sglang.kernels import tree, walk
from dflash_sglang.kernels.truncation import NO_TOP_K

Call = tuple[Tensor | int | bool | None, ...]


class Sizes(NamedTuple):
    """How large the tensors of a decode step are."""

    bs: int = 8  # requests
    positions: int = 7  # drafted positions of a block
    candidates: int = 16  # of each position
    nodes: int = 32  # of a draft tree
    vocabulary: int = 32_000
    hidden: int = 2048  # width of the drafter
    rank: int = 128  # of the selector's codebooks


def calls(sizes: Sizes, seed: int = 0, device: str = "cpu") -> dict[str, Call]:
    """Arguments of each operator by its name.

    Args:
        sizes: of the decode step.
        seed: of the random numbers.
        device: where the tensors shall lie.
    """
    generator = torch.Generator().manual_seed(seed)
    examples = _tree_calls(sizes, generator) | _vocabulary_calls(sizes, generator)
    examples |= _drafter_calls(sizes, generator)
    return {
        name: tuple(part.to(device) if isinstance(part, Tensor) else part for part in call)
        for name, call in examples.items()
    }


def _tree_calls(sizes: Sizes, generator: torch.Generator) -> dict[str, Call]:
    bs, g, K, N = sizes.bs, sizes.positions, sizes.candidates, sizes.nodes
    scores = torch.randn(bs, g, K, K, generator=generator) * 2
    scores[:, 0] = scores[:, 0, :1]
    tokens = torch.rand(bs, g, 2 * K, generator=generator).argsort(-1)[..., :K].contiguous()
    anchors = torch.arange(bs)
    build = (tokens, scores.log_softmax(-1), anchors, N, g, K)
    built = tree.DraftTree(*tree._build_reference(*build))
    # The target follows the first child everywhere, so the walk is as long as the tree is deep.
    prefix_lens = 100 + torch.arange(bs)
    first = tree._layout_reference(built.parents, built.depths, prefix_lens)[2].clamp(min=0)
    target_tokens = built.tokens.gather(1, first)
    walked = (built.tokens, built.parents, built.depths, target_tokens, g)
    path = walk._walk_reference(*walked)[0]
    width = max(N, g + 1)
    slots = torch.randperm(bs * width, generator=generator).view(bs, width)
    log_edges = torch.tensor([0.03, 0.3, 0.8], dtype=torch.float64).log()
    factors = torch.rand(bs, g + 1, 4, generator=generator, dtype=torch.float64)
    bounds = torch.tensor([[N, g]]).repeat(bs, 1)
    worth = (log_edges, factors, bounds, torch.arange(1, N + 1))
    return {
        "build_tree": build,
        "tree_layout": (built.parents, built.depths, prefix_lens),
        "ancestor_bits": (built.parents,),
        "walk_tree": walked,
        "commit_path": (path, slots, prefix_lens, N),
        "expected_tokens": (built.log_values, built.depths, *worth),
    }


def _vocabulary_calls(sizes: Sizes, generator: torch.Generator) -> dict[str, Call]:
    bs, N = sizes.bs, min(sizes.nodes, 4)
    logits = torch.randn(bs, N, sizes.vocabulary, generator=generator) * 3
    positions = torch.arange(bs * N).view(bs, N)
    temperatures = torch.full((bs,), 0.8)
    top_ks = torch.full((bs,), NO_TOP_K)
    top_ks[::2] = 50
    top_ps = torch.full((bs,), 0.95)
    top_ps[-1], top_ks[-1] = 1.0, NO_TOP_K
    laws = (top_ks, top_ps, torch.zeros(bs))
    temperature_and_weight = (temperatures, torch.full((bs,), 2.0))
    noise = (torch.arange(bs), positions)
    return {
        "greedy_tokens": (logits,),
        "top_columns": (logits, sizes.candidates),
        # Without truncation: where too few tokens are possible, any others fill the rest.
        "noisy_candidates": (logits, *temperature_and_weight, *noise, None, None, None, 16, 16),
        "draw_tokens": (logits, temperatures, *noise, *laws, False, False),
    }


def _drafter_calls(sizes: Sizes, generator: torch.Generator) -> dict[str, Call]:
    bs, g, K, rank, D = sizes.bs, sizes.positions, sizes.candidates, sizes.rank, sizes.hidden
    V, groups, taps = sizes.vocabulary, max(1, D // 16), 4
    candidates = torch.randint(0, V, (bs, g, K), generator=generator)
    codebooks = [torch.randn(V, rank, generator=generator) * rank**-0.5 for _ in range(2)]
    gates = torch.randn(bs, g, rank, generator=generator)
    unary = torch.randn(bs, g, K, generator=generator)
    temperatures = torch.linspace(0, 1, bs)
    x = torch.randn(bs, g + 1, D, generator=generator)
    delta = torch.randn(bs, g + 1, 2, taps, groups, generator=generator)[:, :, 1]
    kernel = torch.randn(taps, D, generator=generator)
    weight = torch.randn(D, D, generator=generator) * D**-0.5
    return {
        "linear": (x, weight, None),
        "pair_scores": (gates, torch.arange(bs), candidates, unary, *codebooks, temperatures),
        "convolve_block": (x, kernel, delta, None),
    }
