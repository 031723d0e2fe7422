"""Custom logit processors at every node: each sees the request as if decoding had come that far.

A processor of SGLang's is a function of logits and of the request's parameters, among which it
finds the request itself. At a draft node it finds a copy whose output goes on to that node. The
copy is made when the processor looks at it, since on an accelerator it takes a wait for the
device: a processor that reads parameters only costs none.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from sglang.srt.layers.sampler import apply_custom_logit_processor
from sglang.srt.sampling.sampling_batch_info import ProcessorEntry

from dflash_sglang.engine.node_rows import one_row_a_node
from dflash_sglang.tree.build import DraftTree

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

_REQUEST = "__req__"  # SGLang's key of the request among a processor's parameters


class Delivered(NamedTuple):
    """What one step delivered. The scheduler may not have seen it when the next step starts."""

    rows: dict[str, int]  # row of each request, by request id
    tokens: torch.Tensor  # [bs, n] int64
    lens: torch.Tensor  # [bs] int64, how many of a row count


class RequestAtNode:
    """Stands for a request whose output has gone on; SGLang's own request in everything else.

    Args:
        req: the scheduler's request.
        further: tokens behind ``req.output_ids``.
    """

    def __init__(self, req: Req, further: Callable[[], list[int]]) -> None:
        self._original = req
        self._further = further

    @cached_property
    def _request(self) -> Req:
        # A whole request, so that what SGLang derives from its output agrees.
        request = copy(self._original)
        request.output_ids = self._original.output_ids + array("q", self._further())
        return request

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)


class OutputsOnHost:
    """The newest tokens of a batch, copied to the host the first time that one is asked for.

    Args:
        reqs: the batch.
        prompt_and_output_lens: [bs] int64, anchors included.
        last: what the step before delivered, None before the first.
        tree: drafts behind the anchors, None in a prefill.
    """

    def __init__(
        self,
        reqs: Sequence[Req],
        prompt_and_output_lens: torch.Tensor,
        last: Delivered | None,
        tree: DraftTree | None = None,
    ) -> None:
        self._reqs = reqs
        self._device_lens = prompt_and_output_lens
        self._last = last
        self._tree = tree

    def request(self, row: int, node: int = 0) -> RequestAtNode:
        """The request of a row with its output up to a node, the anchor unless told otherwise."""
        req = self._reqs[row]
        return RequestAtNode(req, lambda: [*self._unseen(row), *self._path(row, node)])

    def _unseen(self, row: int) -> list[int]:
        """Tokens up to the anchor that the scheduler has not yet put into the request's output."""
        req = self._reqs[row]
        missing = self._lens[row] - len(req.origin_input_ids) - len(req.output_ids)
        if missing <= 0 or self._last is None:
            return []
        return self._last_tokens[self._last.rows[req.rid]][-missing:]

    def _path(self, row: int, node: int) -> list[int]:
        """Tokens from behind the anchor to a node."""
        path: list[int] = []
        while node > 0:
            tokens, parents = self._trees
            path.append(tokens[row][node])
            node = parents[row][node]
        return path[::-1]

    @cached_property
    def _lens(self) -> list[int]:
        return self._device_lens.tolist()

    @cached_property
    def _last_tokens(self) -> list[list[int]]:
        assert self._last is not None
        rows = zip(self._last.tokens.tolist(), self._last.lens.tolist(), strict=True)
        return [tokens[:length] for tokens, length in rows]

    @cached_property
    def _trees(self) -> tuple[list[list[int]], list[list[int]]]:
        assert self._tree is not None
        return self._tree.tokens.tolist(), self._tree.parents.tolist()


def show_outputs(info: SamplingBatchInfo, outputs: OutputsOnHost) -> None:
    """Let the processors of a prefill see outputs that the scheduler has not seen."""
    info.custom_params = [
        _with_request(params, outputs.request(row)) for row, params in enumerate(info.custom_params)
    ]


def process_nodes(
    logits: torch.Tensor, info: SamplingBatchInfo, outputs: OutputsOnHost, nodes: int
) -> None:
    """Apply every request's processor to its nodes, in place.

    Args:
        logits: [bs * N, V], adjusted by everything that SGLang applies before.
        info: the batch's sampling parameters; some request has a processor.
        outputs: what the requests have said, draft trees included.
        nodes: N.
    """
    apply_custom_logit_processor(
        logits,
        replace(
            one_row_a_node(info, nodes),
            custom_params=[
                _with_request(params, outputs.request(row, node))
                for row, params in enumerate(info.custom_params)
                for node in range(nodes)
            ],
            custom_logit_processor={
                key: _entry_of_nodes(entry, nodes)
                for key, entry in info.custom_logit_processor.items()
            },
        ),
    )


def _with_request(params: dict[str, Any] | None, request: RequestAtNode) -> dict[str, Any] | None:
    return {**params, _REQUEST: request} if params and _REQUEST in params else params


def _entry_of_nodes(entry: ProcessorEntry, nodes: int) -> ProcessorEntry:
    """The same processor for the rows of all nodes of its requests."""
    within = torch.arange(nodes, device=entry.indices.device)
    return ProcessorEntry(
        processor=entry.processor,
        rows=[row * nodes + node for row in entry.rows for node in range(nodes)],
        indices=(entry.indices[:, None] * nodes + within).reshape(-1),
    )
