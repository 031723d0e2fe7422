"""Steps rehearsed at start, so that the width policy knows what they take before traffic comes.

A rehearsed step runs the drafter and the target as a decode step does, for requests that do not
exist: they read and write slot 0, SGLang's bin. What a step does beside the two forwards is left to
the correction by real steps.
"""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from math import inf
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from sglang.srt.model_executor.forward_batch_info import (
    CaptureHiddenMode,
    ForwardBatch,
    ForwardMode,
)
from sglang.srt.speculative.dflash_info import DFlashVerifyInput

from dflash_sglang.adaptive.costs import Measured, Step
from dflash_sglang.engine.compat import TESTED_VERSION
from dflash_sglang.engine.drafting import BlockDrafter
from dflash_sglang.engine.window import StepWindow
from dflash_sglang.kernels.build import cache_directory
from dflash_sglang.options import DFlash2Options

if TYPE_CHECKING:
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.server_args import ServerArgs

logger = logging.getLogger(__name__)

_SHORT, _LONG = 128, 1024  # cached tokens of a rehearsed request
_REHEARSED = (  # requests, their cached tokens, nodes
    (1, _SHORT, (1, 4, 8, 16, 32)),
    (4, _SHORT, (1, 4, 8, 16)),
    (16, _SHORT, (1, 4, 8)),
    (4, _LONG, (1, 8)),
)
_TURNS = 4  # of which the fastest counts

Place = tuple[int, int]  # requests, cached tokens of all of them


@dataclass(frozen=True)
class Stage:
    """Who plays in a rehearsal."""

    target: ModelRunner
    drafter: BlockDrafter
    algorithm: Any  # SGLang's, of the server
    slots_per_step: int


def rehearsed_steps(rows: int, most_nodes: int, longest: int) -> list[Step]:
    """The kinds of steps that a rehearsal times.

    Args:
        rows: requests that the server can hold at once.
        most_nodes: the ceiling of a step's nodes.
        longest: cached tokens that a request may have before a step.
    """
    return [
        Step(bs, nodes, bs * context)
        for bs, context, widths in _REHEARSED
        if bs <= rows
        for nodes in widths
        if nodes <= most_nodes and context <= longest
    ]


def rehearse(stage: Stage, steps: list[Step]) -> list[Measured]:
    """Times of steps, the fastest of some turns each.

    Whatever disturbs a turn makes it slower. So the turns of a step lie apart, and no step takes
    longer than one that does the same for more nodes.
    """
    drafts = {_place(step): step for step in steps if step.nodes > 1}
    draft: dict[Place, float] = dict.fromkeys(drafts, inf)
    verify: dict[Step, float] = dict.fromkeys(steps, inf)
    for _ in range(_TURNS):
        for place, step in drafts.items():
            draft[place] = min(draft[place], _timed(partial(_draft, stage, step)))
        for step in steps:
            verify[step] = min(verify[step], _timed(partial(_verify, stage, step)))
    return [
        Measured(
            step,
            (draft[_place(step)] if step.nodes > 1 else 0.0)
            + min(verify[other] for other in steps if _does_all_of(other, step)),
        )
        for step in steps
    ]


def rehearsal_file(server_args: ServerArgs, options: DFlash2Options) -> Path:
    """Where the times of this server's steps are kept.

    By what decides them: machine, checkpoints, versions and the speculation window.
    """
    decisive = [
        platform.node(),
        platform.processor() or platform.machine(),
        len(os.sched_getaffinity(0)),
        torch.get_num_threads(),
        torch.__version__,
        TESTED_VERSION,
        server_args.model_path,
        server_args.speculative_draft_model_path,
        server_args.dtype,
        server_args.tp_size,
        options.num_nodes,
        options.max_depth,
        options.slots_per_step,
        options.draft_vocabulary,
    ]
    key = blake2b(repr(decisive).encode(), digest_size=12).hexdigest()
    return cache_directory() / f"steps-{key}.json"


def remembered(
    file: Path,
    steps: list[Step],
    play: Callable[[], list[Measured]],
    agree: Callable[[bool], bool],
) -> list[Measured]:
    """What a rehearsal of these steps found, read from ``file`` or played and written there.

    Args:
        agree: turns a rank's answer into that of all. A rank that rehearses alone would wait for
            the others forever. One whose file is spoilt where the first rank's is not goes without:
            the first rank chooses the widths.
    """
    kept = _read(file)
    fits = [row.step for row in kept] == steps
    if agree(fits):
        return kept if fits else []
    started = perf_counter()
    measured = play()
    logger.info("dflash2: steps were rehearsed in %.1f s", perf_counter() - started)
    # Whole or not at all, for servers that start at once.
    draft = file.with_suffix(f".{os.getpid()}")
    draft.write_bytes(msgspec.json.encode(measured))
    draft.replace(file)
    return measured


def _read(file: Path) -> list[Measured]:
    """The measurements in a file; none where it is missing or holds anything else."""
    try:
        kept = msgspec.json.decode(file.read_bytes(), type=list[Measured])
    except (OSError, msgspec.DecodeError):
        return []
    return kept if all(row.milliseconds > 0 for row in kept) else []


def _timed(play: Callable[[], None]) -> float:
    """Milliseconds of a turn."""
    started = perf_counter()
    play()
    return 1e3 * (perf_counter() - started)


def _place(step: Step) -> Place:
    return step.requests, step.context


def _does_all_of(other: Step, step: Step) -> bool:
    return _place(other) == _place(step) and other.nodes >= step.nodes


def _draft(stage: Stage, step: Step) -> None:
    window = _window(stage, step)
    batch = SimpleNamespace(
        req_pool_indices=torch.zeros(step.requests, dtype=torch.int64),
        seq_lens_cpu=window.prefix_lens,
        spec_algorithm=stage.algorithm,
        can_run_decode_cuda_graph=False,
    )
    stage.drafter.draft(batch, window)  # as much of one as it reads


def _verify(stage: Stage, step: Step) -> None:
    window = _window(stage, step)
    bs, nodes = step.requests, step.nodes
    tokens = torch.zeros(bs * nodes, dtype=torch.int64)
    positions = (window.prefix_lens[:, None] + torch.arange(nodes)).reshape(-1)
    lens = window.prefix_lens + nodes
    forward_batch = ForwardBatch(
        forward_mode=ForwardMode.TARGET_VERIFY,
        batch_size=bs,
        input_ids=tokens,
        req_pool_indices=torch.zeros(bs, dtype=torch.int64),
        seq_lens=window.prefix_lens,
        out_cache_loc=None,  # bound below
        seq_lens_sum=int(lens.sum()),
        seq_lens_cpu=lens,
        positions=positions,
        spec_algorithm=stage.algorithm,
        spec_info=DFlashVerifyInput(
            draft_token=tokens,
            positions=positions,
            draft_token_num=nodes,
            capture_hidden_mode=CaptureHiddenMode.FULL,
        ),
        capture_hidden_mode=CaptureHiddenMode.FULL,
        can_run_decode_cuda_graph=False,
    )
    window.plan.bind(forward_batch, stage.target.kv_index_translator, cols=window.columns(nodes))
    stage.target.forward(forward_batch)


def _window(stage: Stage, step: Step) -> StepWindow:
    bs, width = step.requests, stage.slots_per_step
    lens = torch.full((bs,), step.context // bs)
    slots = torch.zeros(bs, width, dtype=torch.int64)
    plan = stage.target.kv_index_translator.plan(
        req_pool_indices=torch.zeros(bs, dtype=torch.int64),
        seq_lens=lens,
        seq_lens_cpu=lens,
        write_virtual=slots.reshape(-1),
        read_extent=width,
    )
    return StepWindow(torch.zeros(bs, dtype=torch.int64), lens, slots, plan)
