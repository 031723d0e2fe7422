"""Captured samples as training batches; the batch of a step is a function of (seed, step)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from .anchors import anchor_range, draw_anchors
from .errors import DataError
from .store import Manifest, Shard, read_shard

# Batches whose texts are sorted by length together.
_WINDOW = 16


class Sample(NamedTuple):
    """One prompt and its response."""

    tokens: Tensor  # [T] int64
    features: Tensor  # [T, n_taps * D] bf16
    response_start: int
    temperature: float  # 0 = greedy
    domain: str


class Batch(NamedTuple):
    """Sequences of one forward and the blocks cut from them."""

    tokens: Tensor  # [S, T] int64, padded with 0 on the right
    features: Tensor  # [S, T, n_taps * D]
    lengths: Tensor  # [S] int64
    anchors: Tensor  # [S, A] int64, anchors.UNUSED where a block is padding

    def to(self, device: torch.device) -> Batch:
        return Batch(*(column.to(device) for column in self))


class CaptureDataset:
    """The usable samples of a finished capture, in memory-mapped shards.

    A sample is usable when its response has an anchor (two tokens). Texts longer than
    `max_length` tokens are cut there.

    Raises:
        DataError: no finished capture, or no response as long as a block.
    """

    def __init__(self, folder: str | Path, block_size: int, max_length: int = 4096):
        self.manifest = Manifest.read(folder)
        self.max_length = max_length
        self._shards = [read_shard(Path(folder) / name) for name in self.manifest.shards]
        self._places: list[tuple[int, int]] = []  # (shard, sample within it)
        lengths: list[Tensor] = []
        longest = 0
        for index, shard in enumerate(self._shards):
            ends = (shard.offsets[1:] - shard.offsets[:-1]).clamp(max=max_length)
            answers = ends - shard.response_starts  # [S]
            usable = (answers >= 2).nonzero()[:, 0]
            longest = max([longest, *answers.tolist()])
            self._places += [(index, i) for i in usable.tolist()]
            lengths.append(ends[usable])
        self.lengths = torch.cat(lengths)  # [samples] int64 tokens of each
        if longest < block_size:
            raise DataError(
                f"{folder}: no response is as long as a block of {block_size} tokens "
                f"(the longest of {self.manifest.plan.num_samples} has {longest})"
            )

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> Sample:
        shard_index, i = self._places[index]
        shard: Shard = self._shards[shard_index]
        start = int(shard.offsets[i])
        end = min(int(shard.offsets[i + 1]), start + self.max_length)
        return Sample(
            shard.tokens[start:end].long(),
            shard.features[start:end],
            int(shard.response_starts[i]),
            float(shard.temperatures[i]),
            shard.domains[i],
        )

    def count_token(self, token: int) -> int:
        """How often a token id occurs in the captured text, prompts included."""
        return sum(int((shard.tokens == token).sum()) for shard in self._shards)

    def label_counts(self) -> Tensor:
        """How often each token id occurs in the responses, [V] int64."""
        counts = torch.zeros(self.manifest.plan.vocab_size, dtype=torch.int64)
        for index in range(len(self)):
            sample = self[index]
            labels = sample.tokens[sample.response_start :]
            counts += torch.bincount(labels, minlength=self.manifest.plan.vocab_size)
        return counts


class BatchSchedule:
    """Which samples and anchors make up micro-batch m, for every m, without state.

    Each epoch is a permutation of the data drawn from (seed, epoch), in which texts of similar
    length are neighbours within windows of a few batches, so that padding is small; an incomplete
    last batch is left out. With fewer samples than a batch, an epoch is one batch of all of them.

    Args:
        pad_to: sequences are padded to a multiple of it, so that few shapes occur.
    """

    def __init__(
        self,
        dataset: CaptureDataset,
        sequences: int,
        anchors: int,
        seed: int,
        pad_to: int = 64,
    ):
        self.dataset, self.anchors, self.seed, self.pad_to = dataset, anchors, seed, pad_to
        self.sequences = min(sequences, len(dataset))
        self.batches_per_epoch = len(dataset) // self.sequences
        self._epoch, self._batches = -1, torch.empty(0, sequences, dtype=torch.int64)

    def __getitem__(self, micro_batch: int) -> Batch:
        epoch, index = divmod(micro_batch, self.batches_per_epoch)
        if epoch != self._epoch:
            self._epoch, self._batches = epoch, self._draw_epoch(epoch)
        chosen = self._batches[index].tolist()
        samples = [self.dataset[i] for i in chosen]
        anchors = [
            draw_anchors(s.response_start, len(s.tokens), self.anchors, self.seed, epoch, i)
            for i, s in zip(chosen, samples, strict=True)
        ]
        return collate(samples, anchors, self.pad_to)

    def _draw_epoch(self, epoch: int) -> Tensor:
        """Samples of every batch of an epoch, [batches, sequences] int64."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        order = torch.randperm(len(self.dataset), generator=generator)
        order = order[: self.batches_per_epoch * self.sequences]
        lengths = self.dataset.lengths
        windows = [
            part[lengths[part].argsort(stable=True)]
            for part in order.split(_WINDOW * self.sequences)
        ]
        batches = torch.cat(windows).view(-1, self.sequences)
        # Otherwise every window would go from short texts to long ones.
        return batches[torch.randperm(len(batches), generator=generator)]


def all_anchors(sample: Sample) -> Tensor:
    """Every anchor of a sample, [A] int64: what evaluation by replay looks at."""
    return torch.tensor(list(anchor_range(sample.response_start, len(sample.tokens))))


def collate(samples: Sequence[Sample], anchors: Sequence[Tensor], pad_to: int = 1) -> Batch:
    """Pad samples (tokens and features with 0) and their anchors (with UNUSED) to one batch."""
    lengths = torch.tensor([len(sample.tokens) for sample in samples])
    width = -(-int(lengths.max()) // pad_to) * pad_to
    features = samples[0].features.new_zeros(len(samples), width, samples[0].features.shape[1])
    tokens = torch.zeros(len(samples), width, dtype=torch.int64)
    for row, sample in enumerate(samples):
        tokens[row, : len(sample.tokens)] = sample.tokens
        features[row, : len(sample.tokens)] = sample.features
    blocks = pad_sequence(list(anchors), batch_first=True, padding_value=-1)
    return Batch(tokens, features, lengths, blocks)
