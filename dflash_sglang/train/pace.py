"""How long a step takes on this machine, so that a time budget becomes a number of steps."""

from __future__ import annotations

import time

import torch

from .data import BatchSchedule, CaptureDataset
from .head_rows import row_sampler
from .objective import DraftObjective
from .options import TrainOptions

# Evaluations, checkpoints and jitter take this share of a time budget.
_OVERHEAD = 0.12


def steps_within(
    minutes: float,
    objective: DraftObjective,
    dataset: CaptureDataset,
    options: TrainOptions,
    probes: int = 9,
) -> int:
    """Steps that fit into `minutes`, from the median of a few probes that change no weight."""
    if options.compiled:
        objective.compile()  # the probes that compile are slow outliers, and pay for the run
    device = objective.embedding.device
    batches = BatchSchedule(dataset, options.sequences, options.anchors, options.seed)
    rows = row_sampler(dataset, options)
    times = []
    for probe in range(probes):
        began = time.monotonic()
        for part in range(options.gradient_accumulation):
            batch = batches[probe * options.gradient_accumulation + part].to(device)
            with torch.autocast(device.type, torch.bfloat16, options.precision == "bf16"):
                objective(batch, rows.rows(probe, device)).total.backward()
        objective.zero_grad()
        times.append(time.monotonic() - began)
    return max(1, int(60 * minutes * (1 - _OVERHEAD) / sorted(times)[probes // 2]))
