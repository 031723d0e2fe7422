"""The training loop: AdamW, held-out accept length, exact resumption."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from dflash_sglang.drafter import DFlash2Drafter, save_drafter

from .curve import accept_names, write_curve
from .data import BatchSchedule, CaptureDataset, Sample
from .errors import TrainingError
from .head_rows import row_sampler
from .heldout import replay_accept_length
from .interrupts import stop_request
from .objective import DraftObjective, LossTerms
from .options import TrainOptions
from .provenance import write_provenance
from .schedule import learning_rate
from .training_state import STATE, Progressed, load_state, save_state
from .tree_shape import TreeShape


class Trainer:
    """One run.

    Args:
        objective: drafter (fp32) and the target's frozen parts; trained in place.
        dataset: captured training text.
        options: see TrainOptions.
        out: folder of state, checkpoints and curve.
        held_out: greedy samples that accept length is measured on; may be empty.
        facts: further entries for every checkpoint's provenance.

    Raises:
        TrainingError: drafter and data do not fit (taps, sizes, mask token in use).
    """

    def __init__(
        self,
        objective: DraftObjective,
        dataset: CaptureDataset,
        options: TrainOptions,
        out: Path,
        held_out: Sequence[Sample] = (),
        facts: dict[str, Any] | None = None,
        console: Console | None = None,
    ):
        check_fit(objective.drafter, dataset)
        self.options, self.out, self.held_out = options, out, held_out
        self.facts = {"options": options.plan(), "data": dataset.manifest.fingerprint()}
        self.facts |= facts or {}
        self.console = console or Console(stderr=True)
        self.drafter: DFlash2Drafter = objective.drafter
        self.objective = objective
        self.optimizer = make_optimizer(objective.drafter, options)
        self.accelerator = Accelerator(
            mixed_precision="bf16" if options.precision == "bf16" else "no",
            gradient_accumulation_steps=options.gradient_accumulation,
        )
        if options.compiled:
            objective.compile()
        self.model, self.stepper = self.accelerator.prepare(objective, self.optimizer)
        self.batches = BatchSchedule(dataset, options.sequences, options.anchors, options.seed)
        self.rows = row_sampler(dataset, options)
        self.shapes = [
            TreeShape.chain(self.drafter.config.block_size),
            TreeShape.tree(options.tree_nodes),
        ]

    def run(self, resume: bool = False, stop_after: int | None = None) -> Progressed:
        """Train to the last step, or to step `stop_after`, and save.

        Raises:
            TrainingError: `out` holds a run and `resume` is not set, or the loss is not finite.
        """
        progressed = self._start(resume)
        last = min(stop_after or self.options.steps, self.options.steps)
        history = list(progressed.history)
        began = time.monotonic() - progressed.elapsed_s
        meter = LossMeter()
        step = progressed.step
        with self._progress() as bar, stop_request() as stop:
            task = bar.add_task("train", total=self.options.steps, completed=step, note="")
            while step < last and not stop.is_set():
                meter.add(self._step(step))
                step += 1
                bar.update(task, completed=step, note=_note(meter, history))
                finished = step == self.options.steps
                if finished or step % self.options.evaluate_every == 0:
                    elapsed = time.monotonic() - began
                    history.append(self._evaluate(step, elapsed, meter.means()))
                    meter = LossMeter()
                if finished or step % self.options.save_every == 0:
                    self._checkpoint(step, time.monotonic() - began, history)
        if step < self.options.steps:
            self.console.print(f"stopped at step {step}; --resume goes on from there")
        return self._save(step, time.monotonic() - began, history)

    def _start(self, resume: bool) -> Progressed:
        if not (self.out / STATE).exists():
            return Progressed(0, 0.0, self.options.plan(), [])
        if not resume:
            raise TrainingError(f"{self.out} holds a run already; resume it or name another folder")
        return load_state(self.out, self.drafter, self.optimizer, self.options.plan())

    def _step(self, step: int) -> LossTerms:
        """One update; returns the mean loss terms of this process's micro-batches."""
        options, world = self.options, self.accelerator.num_processes
        rate = learning_rate(step, options.learning_rate, options.warmup_steps, options.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        terms = []
        for part in range(options.gradient_accumulation):
            micro_batch = (step * options.gradient_accumulation + part) * world
            micro_batch += self.accelerator.process_index
            device = self.accelerator.device
            batch, rows = self.batches[micro_batch].to(device), self.rows.rows(micro_batch, device)
            with self.accelerator.accumulate(self.model), self.accelerator.autocast():
                losses = self.model(batch, rows)
                self.accelerator.backward(losses.total)
                if self.accelerator.sync_gradients:
                    self.accelerator.clip_grad_norm_(
                        self.drafter.parameters(), options.max_grad_norm
                    )
                self.stepper.step()
                self.stepper.zero_grad()
            terms.append(torch.stack([term.detach().float() for term in losses]))
        means = LossTerms(*torch.stack(terms).mean(dim=0))
        if not math.isfinite(float(means.total)):
            raise TrainingError(f"the loss is {float(means.total)} at step {step}; lower the rate")
        return means

    def _evaluate(self, step: int, elapsed_s: float, losses: dict[str, float]) -> dict[str, float]:
        entry = {"step": step, "elapsed_s": round(elapsed_s, 1), **losses}
        if self.held_out and self.accelerator.is_main_process:
            with self.accelerator.autocast():
                replayed = replay_accept_length(self.objective, self.held_out, self.shapes)
            entry |= {f"accept_{name}": round(a.mean, 4) for name, a in replayed.items()}
        self.console.print(" ".join(f"{k} {v:g}" for k, v in entry.items()), soft_wrap=True)
        return entry

    def _checkpoint(self, step: int, elapsed_s: float, history: list[dict[str, float]]) -> None:
        if self.accelerator.is_main_process:
            folder = self.out / f"step-{step:06d}"
            export(self.objective, folder)
            last = history[-1] if history else {}
            write_provenance(
                folder, step=step, elapsed_s=round(elapsed_s, 1), last_evaluation=last, **self.facts
            )
        self._save(step, elapsed_s, history)

    def _save(self, step: int, elapsed_s: float, history: list[dict[str, float]]) -> Progressed:
        progressed = Progressed(step, elapsed_s, self.options.plan(), history)
        if self.accelerator.is_main_process and step > 0:
            save_state(self.out, self.drafter, self.optimizer, progressed)
            if history:
                write_curve(self.out, history)
        return progressed

    def _progress(self) -> Progress:
        return Progress(
            TextColumn("train"),
            MofNCompleteColumn(),
            BarColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=self.console,
            disable=not (self.accelerator.is_main_process and self.console.is_terminal),
        )


class LossMeter:
    """Running means of the loss terms since the last evaluation."""

    def __init__(self) -> None:
        self.sums: Tensor | None = None
        self.count = 0

    def add(self, terms: LossTerms) -> None:
        stacked = torch.stack(list(terms))
        self.sums = stacked if self.sums is None else self.sums + stacked
        self.count += 1

    def means(self) -> dict[str, float]:
        if self.sums is None:
            return {}
        values = (self.sums / self.count).tolist()
        return {name: round(v, 4) for name, v in zip(LossTerms._fields, values, strict=True)}


def make_optimizer(drafter: DFlash2Drafter, options: TrainOptions) -> torch.optim.AdamW:
    """AdamW; norms, convolution base kernels and codebooks are not decayed."""
    linear = {m.weight for m in drafter.modules() if isinstance(m, nn.Linear)}
    decayed = [p for p in drafter.parameters() if p in linear]
    others = [p for p in drafter.parameters() if p not in linear]
    groups = [
        {"params": decayed, "weight_decay": options.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=options.learning_rate, betas=(0.9, 0.95), fused=True)


def check_fit(drafter: DFlash2Drafter, dataset: CaptureDataset) -> None:
    """Raise TrainingError unless the drafter can be trained on this capture."""
    config, manifest = drafter.config, dataset.manifest
    for what, ours, theirs in (
        ("tap layers", list(config.target_layer_ids), manifest.plan.tap_layer_ids),
        ("hidden size", config.target_hidden_size, manifest.plan.hidden_size),
        ("vocabulary", config.vocab_size, manifest.plan.vocab_size),
    ):
        if ours != theirs:
            raise TrainingError(f"the drafter has {what} {ours}, the captured data {theirs}")
    used = dataset.count_token(config.mask_token_id)
    if used:
        raise TrainingError(
            f"mask token {config.mask_token_id} occurs {used} times in the captured text; "
            "choose a token id that no text uses"
        )


def export(objective: DraftObjective, folder: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write the drafter as it is served: published layout, `dtype` weights."""
    save_drafter(objective.served_drafter().to(dtype), folder)


def _note(meter: LossMeter, history: list[dict[str, float]]) -> str:
    accepted = [f"{name[7:]} {history[-1][name]:.2f}" for name in accept_names(history)]
    return " ".join([f"loss {meter.means()['total']:.3f}", *accepted])
