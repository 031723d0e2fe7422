"""Everything an interrupted run needs to go on, in one safetensors file replaced atomically.

Batches, anchors and head rows are functions of (seed, step) and the drafter has no dropout, so
weights, AdamW's moments and the step are the whole state: no random-number state is kept.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from dflash_sglang.drafter import DFlash2Drafter

from .errors import TrainingError

STATE = "state.safetensors"
_MOMENTS = ("exp_avg", "exp_avg_sq")


class Progressed(NamedTuple):
    """How far a run has come."""

    step: int
    elapsed_s: float
    plan: dict[str, Any]  # the options that determine the weights
    history: list[dict[str, float]]  # one entry an evaluation


def save_state(
    folder: Path, drafter: DFlash2Drafter, optimizer: torch.optim.AdamW, progressed: Progressed
) -> None:
    """Write weights (fp32 as trained), moments and progress to `folder`."""
    tensors = {}
    for name, parameter in drafter.named_parameters():
        tensors[f"weight/{name}"] = parameter.detach()
        state = optimizer.state[parameter]
        for moment in _MOMENTS:
            tensors[f"{moment}/{name}"] = state[moment]
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / (STATE + ".partial")
    cpu = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    save_file(cpu, partial, metadata={"progressed": json.dumps(progressed._asdict())})
    os.replace(partial, folder / STATE)


def load_state(
    folder: Path, drafter: DFlash2Drafter, optimizer: torch.optim.AdamW, plan: dict[str, Any]
) -> Progressed:
    """Restore what `save_state` wrote, in place.

    Raises:
        TrainingError: the stored run had other options, so its continuation would be neither.
    """
    with safe_open(folder / STATE, framework="pt") as file:
        progressed = Progressed(**json.loads(file.metadata()["progressed"]))
        differing = sorted(k for k in plan if progressed.plan.get(k) != plan[k])
        if differing:
            old = {k: progressed.plan.get(k) for k in differing}
            new = {k: plan[k] for k in differing}
            raise TrainingError(f"{folder} holds a run with {old}, this one has {new}")
        with torch.no_grad():
            for name, parameter in drafter.named_parameters():
                parameter.copy_(file.get_tensor(f"weight/{name}"))
                moments = {m: file.get_tensor(f"{m}/{name}").to(parameter) for m in _MOMENTS}
                step = torch.tensor(float(progressed.step))
                # Fused AdamW keeps its step counter beside the parameter.
                on_device = step.to(parameter.device) if parameter.is_cuda else step
                optimizer.state[parameter] = {"step": on_device, **moments}
    return progressed


def stored_plan(folder: Path) -> dict[str, Any]:
    """The plan of the run whose state lies in `folder`."""
    with safe_open(folder / STATE, framework="pt") as file:
        return json.loads(file.metadata()["progressed"])["plan"]
