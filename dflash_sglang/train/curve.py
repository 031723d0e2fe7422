"""The training curve as JSON and as a picture."""

from __future__ import annotations

import json
from pathlib import Path

from .store import write_text


def write_curve(folder: Path, history: list[dict[str, float]]) -> None:
    """Write `curve.json` (one entry an evaluation) and `curve.png` (losses, accept lengths)."""
    write_text(folder / "curve.json", json.dumps(history, indent=1) + "\n")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    losses, lengths = figure.subplots(1, 2)
    steps = [entry["step"] for entry in history]
    for name in ("unary", "selector"):
        losses.plot(steps, [entry[name] for entry in history], label=name)
    losses.set(title="training loss", xlabel="step", ylabel="nats")
    for name in accept_names(history):
        lengths.plot(steps, [entry[name] for entry in history], label=name.removeprefix("accept_"))
    lengths.set(
        title="held-out accept length, greedy", xlabel="step", ylabel="tokens / verify step"
    )
    for axes in (losses, lengths):
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend()
    figure.savefig(folder / "curve.png", dpi=110)


def accept_names(history: list[dict[str, float]]) -> list[str]:
    """Keys of the accept lengths in the history's entries."""
    return [name for name in (history[-1] if history else {}) if name.startswith("accept_")]
