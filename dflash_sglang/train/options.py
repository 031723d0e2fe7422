"""Options of a training run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from .errors import TrainingError

Precision = Literal["fp32", "bf16"]


@dataclass(frozen=True)
class TrainOptions:
    """What determines the trained weights, data and drafter apart; then how the run is watched.

    A step updates the weights once, from `gradient_accumulation` micro-batches a process of
    `sequences` texts with `anchors` blocks each.
    """

    steps: int
    sequences: int = 8
    anchors: int = 24
    gradient_accumulation: int = 1
    learning_rate: float = 2e-3
    warmup_steps: int = 100
    weight_decay: float = 0.01  # on the weights of linear maps only
    max_grad_norm: float = 1.0
    selector_weight: float = 1.0
    precision: Precision = "fp32"  # of the forward; weights and optimizer are fp32 always
    head_rows: int | None = None  # most frequent rows of the head that are trained on; None: all
    sampled_rows: int = 0  # further rows drawn each step as negatives
    scale_features: bool = False  # train on features of unit size (see feature_scale.py)
    compiled: bool = False  # torch.compile: a minute or two at the start, then faster steps
    seed: int = 0

    evaluate_every: int = 500  # steps
    save_every: int = 500  # steps
    tree_nodes: int = 16  # of the held-out tree, root included

    def __post_init__(self) -> None:
        for name in ("steps", "sequences", "anchors", "gradient_accumulation", "warmup_steps"):
            if getattr(self, name) < 1:
                raise TrainingError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.learning_rate > 0:
            raise TrainingError(f"learning_rate must be positive, got {self.learning_rate}")

    def plan(self) -> dict[str, Any]:
        """The part that determines the weights: a resumed run must agree on it."""
        watched = {"evaluate_every", "save_every", "tree_nodes"}
        return {name: value for name, value in asdict(self).items() if name not in watched}
