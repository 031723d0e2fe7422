"""Accept length on held-out text without running the target: greedy decoding, replayed.

The held-out responses are the target's own greedy continuations, so the target's token behind any
accepted path is the text's next token. Drafting from every anchor of the response therefore tells
what each verify step of greedy decoding would accept, and hopping from anchor to anchor by those
lengths replays the decoding run itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dflash_sglang.tree import DraftTree, build_lattice
from dflash_sglang.verify import walk

from .data import Batch, CaptureDataset, Sample, all_anchors, collate
from .errors import DataError
from .objective import DraftObjective
from .proposals import best_candidates
from .replay import following
from .tree_shape import TreeShape

# Blocks that share one pass over a sequence's context, and passes that share one forward.
_BLOCKS, _SEQUENCES = 32, 8


class AcceptLength(NamedTuple):
    """Tokens committed per verify step, the bonus token included."""

    tokens: int
    steps: int

    @property
    def mean(self) -> float:
        return self.tokens / max(1, self.steps)


def greedy_samples(dataset: CaptureDataset, count: int) -> list[Sample]:
    """The first `count` greedy samples. Raises DataError when there is none."""
    every = (dataset[i] for i in range(len(dataset)))
    chosen = [sample for sample in every if sample.temperature == 0][:count]
    if not chosen:
        raise DataError(
            "held-out data holds no greedy response (temperature 0), which replay needs"
        )
    return chosen


@torch.no_grad()
def replay_accept_length(
    objective: DraftObjective, samples: Sequence[Sample], shapes: Sequence[TreeShape]
) -> dict[str, AcceptLength]:
    """Greedy accept length of every tree shape over `samples`, by shape name.

    Raises:
        DataError: a sample that was not generated greedily.
    """
    if any(sample.temperature > 0 for sample in samples):
        raise DataError("replay needs greedy responses (temperature 0), got sampled ones")
    was_training = objective.training
    objective.eval()
    accepted = {shape.name: [_empty(sample) for sample in samples] for shape in shapes}
    for rows, batch in _passes(samples, objective.embedding.device):
        states = objective.block_states(batch)
        best = best_candidates(objective, states)
        lattice = build_lattice(best.scores, best.tokens)
        for shape in shapes:
            lengths = _accepted(shape.build(lattice, states.anchors), batch)  # [S, A]
            for row, anchors, found in zip(rows, batch.anchors, lengths, strict=True):
                used = anchors >= 0
                accepted[shape.name][row][anchors[used].cpu()] = found[used].cpu()
    objective.train(was_training)
    return {name: _hop(samples, lengths) for name, lengths in accepted.items()}


def _empty(sample: Sample) -> Tensor:
    return torch.zeros(len(sample.tokens), dtype=torch.int64)


def _passes(samples: Sequence[Sample], device: torch.device) -> Iterator[tuple[list[int], Batch]]:
    """All anchors of all samples in batches of similar length; the row's sample beside each row."""
    by_length = sorted(range(len(samples)), key=lambda i: len(samples[i].tokens))
    passes = [(i, part) for i in by_length for part in all_anchors(samples[i]).split(_BLOCKS)]
    for start in range(0, len(passes), _SEQUENCES):
        rows, parts = zip(*passes[start : start + _SEQUENCES], strict=True)
        yield list(rows), collate([samples[i] for i in rows], parts).to(device)


def _accepted(tree: DraftTree, batch: Batch) -> Tensor:
    """Tokens each block's step delivers, [S, A] int64: accepted drafts and the bonus token."""
    S, A = batch.anchors.shape
    rows = torch.arange(S, device=batch.tokens.device).repeat_interleave(A)  # [n]
    texts = following(batch.tokens, batch.lengths, rows, tree, batch.anchors.flatten())
    return walk(tree, texts, int(tree.depths.max())).accept_lens.view(S, A)


def _hop(samples: Sequence[Sample], accepted: Sequence[Tensor]) -> AcceptLength:
    tokens = steps = 0
    for sample, lengths in zip(samples, accepted, strict=True):
        place, last = sample.response_start, len(sample.tokens) - 1
        while place < last:
            produced = min(int(lengths[place]), last - place)
            place, tokens, steps = place + produced, tokens + produced, steps + 1
    return AcceptLength(tokens, steps)
