"""What penalized requests have generated, kept on the device, and their minimum lengths.

SGLang's penalizers learn a token from the host. With the overlap scheduler the host is one step
behind, and a speculative step is several tokens, so their state misses the newest ones. Here every
step's tokens are added where they were made: on the device, in the order of the steps, without
waiting.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

import torch

from dflash_sglang.verify.penalties import PenaltyState

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req


class _Record(NamedTuple):
    """One request's output. The last column is a bin for tokens that were not delivered."""

    frequency_sums: torch.Tensor  # [V + 1] float32, the frequency penalty once per occurrence
    is_present: torch.Tensor  # [V + 1] bool

    def add(self, tokens: torch.Tensor, frequency: float) -> None:
        """Take in tokens [n] int64; those not delivered carry V."""
        added = self.frequency_sums.new_full(tokens.shape, frequency)
        self.frequency_sums.scatter_add_(0, tokens, added)
        self.is_present.index_fill_(0, tokens, True)


class PenaltyLedger:
    """The generated tokens of every running request with a penalty.

    Args:
        vocab_size: V.
        device: where steps are computed.
    """

    def __init__(self, vocab_size: int, device: torch.device | str) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._records: WeakKeyDictionary[Req, _Record] = WeakKeyDictionary()
        self._nothing = self._empty_record()

    def restart(self, reqs: Iterable[Req]) -> None:
        """Forget what was added for requests whose prompt, and output if any, is read again."""
        for req in reqs:
            self._records.pop(req, None)

    def state(self, reqs: Sequence[Req]) -> PenaltyState | None:
        """Penalties of a batch behind all tokens added so far; None where no request has any."""
        if not any(is_penalized(req) for req in reqs):
            return None
        records = [self._record(req) if is_penalized(req) else self._nothing for req in reqs]
        asked = [req.sampling_params for req in reqs]
        return PenaltyState(
            frequency=self._on_device([params.frequency_penalty for params in asked]),
            presence=self._on_device([params.presence_penalty for params in asked]),
            repetition=self._on_device([params.repetition_penalty for params in asked]),
            frequency_sums=torch.stack([record.frequency_sums[:-1] for record in records]),
            is_present=torch.stack([record.is_present[:-1] for record in records]),
        )

    def add(self, reqs: Sequence[Req], tokens: torch.Tensor, lens: torch.Tensor) -> None:
        """Take in what a step delivered: tokens [bs, n] int64, of which row b's first lens[b]."""
        if not any(is_penalized(req) for req in reqs):
            return
        places = torch.arange(tokens.shape[1], device=tokens.device)
        delivered = tokens.masked_fill(places >= lens[:, None], self._vocab_size)  # [bs, n]
        for req, row in zip(reqs, delivered, strict=True):
            if is_penalized(req):
                self._record(req).add(row, req.sampling_params.frequency_penalty)

    def _record(self, req: Req) -> _Record:
        record = self._records.get(req)
        if record is None:
            # A request that was retracted comes back with output.
            record = self._records[req] = self._empty_record()
            known = torch.tensor(req.output_ids, dtype=torch.int64)
            known = known.to(self._device, non_blocking=True)
            record.add(known, req.sampling_params.frequency_penalty)
        return record

    def _empty_record(self) -> _Record:
        size = self._vocab_size + 1
        return _Record(
            torch.zeros(size, dtype=torch.float32, device=self._device),
            torch.zeros(size, dtype=torch.bool, device=self._device),
        )

    def _on_device(self, values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32).to(self._device, non_blocking=True)


def is_penalized(req: Req) -> bool:
    """Whether what this request may say next depends on the tokens it said before."""
    params = req.sampling_params
    return (
        params.frequency_penalty != 0
        or params.presence_penalty != 0
        or params.repetition_penalty != 1
    )


class MinimumLengths(NamedTuple):
    """Requests that may not stop yet."""

    stop_tokens: torch.Tensor  # [bs, S] int64 ids that end a request; a row may repeat one
    minimum: torch.Tensor  # [bs] int64, tokens to generate before any of them
    prompt_lens: torch.Tensor  # [bs] int64

    def forbids(self, lens: torch.Tensor) -> torch.Tensor:
        """Where a request may not stop: sequence lengths [bs, ...] int64 -> bool, same shape.

        Args:
            lens: tokens of prompt and output before the one to be chosen.
        """
        by_request = (-1, *[1] * (lens.dim() - 1))
        generated = lens - self.prompt_lens.view(by_request)
        return generated < self.minimum.view(by_request)


def minimum_lengths(reqs: Sequence[Req], device: torch.device | str) -> MinimumLengths | None:
    """The minimum lengths of a batch; None where no request can still be below its own."""
    # What the host has seen is never more than what was generated.
    if not any(len(req.output_ids) < req.sampling_params.min_new_tokens for req in reqs):
        return None
    stops = [stop_tokens(req) for req in reqs]
    widest = max(map(len, stops))
    rows = [
        # Where no token ends a request nothing is forbidden; otherwise the first id fills up.
        (ids + ids[:1] * (widest - len(ids)), req.sampling_params.min_new_tokens)
        if ids
        else ([0] * widest, 0)
        for ids, req in zip(stops, reqs, strict=True)
    ]

    def on_device(values: list) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64).to(device, non_blocking=True)

    return MinimumLengths(
        stop_tokens=on_device([ids for ids, _ in rows]),
        minimum=on_device([minimum for _, minimum in rows]),
        prompt_lens=on_device([len(req.origin_input_ids) for req in reqs]),
    )


def stop_tokens(req: Req) -> list[int]:
    """Ids that end a text: the request's, the model's and, if there is one, the tokenizer's."""
    tokenizer = req.tokenizer
    ids = {*(req.sampling_params.stop_token_ids or ()), *(req.eos_token_ids or ())}
    if tokenizer is not None:
        ids |= {*(tokenizer.additional_stop_token_ids or ()), tokenizer.eos_token_id}
    return sorted(ids - {None})
