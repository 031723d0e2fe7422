"""Speculative decoding replayed along texts that the target has written already.

With greedy decoding and with shared noise the prompt and its seed decide the text, whatever is
drafted: the target's token behind an accepted path is the text's next token. A step of such a run
is therefore the drafter's work alone, and several ways to draft share one text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from dflash_sglang.tree import DraftTree

from .decode import Decoded
from .generate import Draw, generate_batch
from .objective import Context, DraftObjective
from .proposals import SeededProposer
from .target import Target


class Texts(NamedTuple):
    """What the target wrote to the prompts of one batch, and what it thought."""

    tokens: Tensor  # [bs, T] int64, prompts and responses, padded on the right
    starts: Tensor  # [bs] int64 of the responses
    lengths: Tensor  # [bs] int64
    features: Tensor  # [bs, T, n_taps * D]


@torch.no_grad()
def write_texts(
    target: Target,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    stop_token_ids: Sequence[int],
    draw: Draw,
) -> Texts:
    """Let the target continue every prompt until a stop token (kept) or `max_new_tokens`."""
    responses = generate_batch(target, prompts, max_new_tokens, stop_token_ids, draw)
    texts = [
        torch.tensor([*prompt, *response], device=target.device)
        for prompt, response in zip(prompts, responses, strict=True)
    ]
    tokens = pad_sequence(texts, batch_first=True)
    return Texts(
        tokens,
        torch.tensor([len(prompt) for prompt in prompts], device=target.device),
        torch.tensor([len(text) for text in texts], device=target.device),
        target.read(tokens).features,
    )


@torch.no_grad()
def replay_batch(
    objective: DraftObjective, texts: Texts, proposer: SeededProposer, rows: Tensor
) -> list[Decoded]:
    """What `decode_batch` delivers where it delivers `texts`, in order.

    `proposer` knows the prompts as `rows` [bs] int64. A text's first token comes from prefill.
    """
    context = objective.context(texts.features)  # [L, bs, T, Hkv, d]
    accept_lens: list[list[int]] = [[] for _ in rows]
    places, last = texts.starts, texts.lengths - 1  # [bs], of the anchors
    alive = (places < last).nonzero()[:, 0]
    while len(alive):
        at, kept = places[alive], rows[alive]
        extent = int(at.max())
        seen = Context(context.keys[:, alive, :extent], context.values[:, alive, :extent])
        anchors = texts.tokens[alive, at]
        states = objective.draft(seen, anchors[:, None], at[:, None])
        proposal = proposer.propose(objective, states, kept, at)
        drawn = following(texts.tokens, texts.lengths, alive, proposal.tree, at)
        verdict = proposer.follow(proposal, drawn, kept)
        places = places.index_add(0, alive, verdict.accept_lens).minimum(last)
        for row, count in zip(alive.tolist(), (places[alive] - at).tolist(), strict=True):
            accept_lens[row].append(count)
        alive = (places < last).nonzero()[:, 0]
    answers = zip(texts.tokens, texts.starts.tolist(), texts.lengths.tolist(), strict=True)
    return [
        Decoded(tokens[start:end].tolist(), lens)
        for (tokens, start, end), lens in zip(answers, accept_lens, strict=True)
    ]


def following(
    tokens: Tensor, lengths: Tensor, rows: Tensor, tree: DraftTree, places: Tensor
) -> Tensor:
    """The text's token after each node, if the node's path is accepted.

    tokens [S, T] and lengths [S] of the texts; of n blocks their texts `rows` [n], their trees of N
    nodes and their anchors' `places` [n] -> [n, N] int64. Behind a text's end it is -1, which
    equals no draft token and stops the walk.
    """
    behind = places[:, None] + tree.depths + 1  # [n, N]
    exists = behind < lengths[rows, None]
    inside = behind.clamp_max(tokens.shape[1] - 1)
    return tokens[rows[:, None], inside].where(exists, -1)
