"""Muon for the matrices of the layers, AdamW for embedding and norms.

Muon (K. Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024) steps
along the orthogonalised momentum. Its Newton-Schulz iteration runs here in float32, over all
matrices of one shape at once, because CPUs without bfloat16 units are slow in the bfloat16 that
torch.optim.Muon computes in.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor, nn

MOMENTUM = 0.95
WEIGHT_DECAY = 0.01
ADAM_RATE = 0.3  # AdamW's learning rate over Muon's
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # quintic iteration of the reference above
_ITERATIONS = 5


def orthogonalised(matrices: Tensor) -> Tensor:
    """Near the closest semi-orthogonal matrices.

    Args:
        matrices: [count, rows, columns] float32.

    Returns:
        [count, rows, columns]; singular values lie between about 0.7 and 1.2.
    """
    a, b, c = _COEFFICIENTS
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(_ITERATIONS):
        gram = x @ x.mT  # [count, short, short]
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Optimizer:
    """One step for all parameters of a causal language model with tied embeddings."""

    def __init__(self, model: nn.Module, learning_rate: float) -> None:
        named = dict(model.named_parameters())
        self.learning_rate = learning_rate
        self.matrices = {k: p for k, p in named.items() if p.ndim == 2 and ".layers." in k}
        self.momentum = {k: torch.zeros_like(p) for k, p in self.matrices.items()}
        self.others = {k: p for k, p in named.items() if k not in self.matrices}
        self.adamw = torch.optim.AdamW(
            self.others.values(),
            lr=ADAM_RATE * learning_rate,
            betas=(0.9, 0.95),
            weight_decay=0.0,
            fused=True,
        )

    @torch.no_grad()
    def step(self, factor: float) -> None:
        """Update with `factor` times the peak learning rates, then drop the gradients."""
        for group in self.adamw.param_groups:
            group["lr"] = factor * ADAM_RATE * self.learning_rate
        self.adamw.step()
        self.adamw.zero_grad()
        rate = factor * self.learning_rate
        alike: dict[tuple[int, ...], list[str]] = defaultdict(list)
        for name, parameter in self.matrices.items():
            alike[tuple(parameter.shape)].append(name)
        for (rows, columns), names in alike.items():
            gradients = torch.stack([self._gradient(name) for name in names])
            updates = orthogonalised(gradients) * max(1.0, rows / columns) ** 0.5
            for name, update in zip(names, updates, strict=True):
                parameter = self.matrices[name]
                parameter.mul_(1 - rate * WEIGHT_DECAY).sub_(update, alpha=rate)
                parameter.grad = None

    def _gradient(self, name: str) -> Tensor:
        """Nesterov momentum of one matrix."""
        gradient, momentum = self.matrices[name].grad, self.momentum[name]
        if gradient is None:
            raise ValueError(f"expected a gradient for {name}, got none: call backward first")
        momentum.lerp_(gradient, 1 - MOMENTUM)
        return gradient.lerp(momentum, MOMENTUM)

    def state(self) -> dict[str, Tensor]:
        """All of the state as named tensors, fit for safetensors."""
        tensors = {f"momentum.{k}": v for k, v in self.momentum.items()}
        for name, parameter in self.others.items():
            for key, value in self.adamw.state[parameter].items():
                tensors[f"adamw.{key}.{name}"] = value
        return tensors

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        for name, momentum in self.momentum.items():
            momentum.copy_(tensors[f"momentum.{name}"])
        for name, parameter in self.others.items():
            self.adamw.state[parameter] = {
                key: tensors[f"adamw.{key}.{name}"].clone()
                for key in ("step", "exp_avg", "exp_avg_sq")
            }
