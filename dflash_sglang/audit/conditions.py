"""How the audit samples: temperatures with and without top-k and top-p."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

TEMPERATURES = (0.3, 0.7, 1.0, 1.5)
CONCURRENCIES = (1, 8)


@dataclass(frozen=True)
class Condition:
    """Sampling parameters of one pass over the prompts; temperature 0 is greedy."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    @property
    def truncates(self) -> bool:
        return self.top_k is not None or self.top_p is not None

    @property
    def label(self) -> str:
        """For tables: "greedy", or what is set."""
        if self.is_greedy:
            return "greedy"
        parts = [f"temperature {self.temperature:g}"]
        if self.top_k is not None:
            parts.append(f"top-k {self.top_k}")
        if self.top_p is not None:
            parts.append(f"top-p {self.top_p:g}")
        return ", ".join(parts)

    def sampling(self, max_tokens: int, seed: int | None = None) -> dict[str, Any]:
        """SGLang's sampling parameters."""
        parameters = {
            "temperature": self.temperature,
            "max_new_tokens": max_tokens,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "sampling_seed": seed,
        }
        return {name: value for name, value in parameters.items() if value is not None}


GREEDY = Condition()
TRUNCATIONS: tuple[dict[str, Any], ...] = (
    {},
    {"top_k": 20},
    {"top_p": 0.9},
    {"top_k": 50, "top_p": 0.8},
)


def seeded_conditions(temperatures: tuple[float, ...] = TEMPERATURES) -> list[Condition]:
    """Every temperature with every truncation."""
    return [
        Condition(temperature, **truncation)
        for temperature in temperatures
        for truncation in TRUNCATIONS
    ]
