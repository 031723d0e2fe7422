"""A server without a model: drafts are accepted by chance, steps cost by rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from dflash_sglang.adaptive.acceptance import AcceptModel, DraftedNodes
from dflash_sglang.adaptive.costs import CostModel, Measured, Step
from dflash_sglang.adaptive.policy import WidthPolicy

WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
DEPTH = 7
CONTEXT = 300  # cached tokens a request
_RANKS = np.array([0.5, 0.25, 0.125])  # what the runners-up get of what the first lacks


@dataclass(frozen=True)
class Device:
    """Milliseconds of a step."""

    fixed: float
    row: float  # each row of the verify forward beyond `free_rows`
    draft: float
    free_rows: int = 1

    def milliseconds(self, step: Step) -> float:
        rows = step.requests * step.nodes
        drafting = self.draft * (1 + 0.05 * step.requests) if step.nodes > 1 else 0.0
        return self.fixed + drafting + self.row * max(0, rows - self.free_rows)

    def times(self, requests: int) -> np.ndarray:
        """Of every width, [W]."""
        steps = [Step(requests, width, CONTEXT * requests) for width in WIDTHS]
        return np.array([self.milliseconds(step) for step in steps])

    def cost_model(self) -> CostModel:
        """What a few seconds of measuring at the start would give."""
        steps = [Step(bs, n, CONTEXT * bs) for bs in (1, 4, 16) for n in (1, 4, 16, 32)]
        return CostModel.fit(WIDTHS, [Measured(step, self.milliseconds(step)) for step in steps])


@dataclass(frozen=True)
class Text:
    """How a request's drafts fare.

    Attributes:
        holds: mean chance that a draft token holds.
        spread: how much that differs from step to step.
        claims: the chance that the drafter claims is the true one to this power; below 1 it boasts.
    """

    holds: float
    spread: float = 0.1
    claims: float = 1.0

    def step(self, rng: np.random.Generator) -> tuple[DraftedNodes, np.ndarray]:
        """One drafted tree, best claim first, and the true chance of each of its nodes."""
        holds = np.clip(rng.normal(self.holds, self.spread), 0.01, 0.99)
        true, claimed = _nodes(holds), _nodes(holds**self.claims)
        order = np.argsort(-claimed, kind="stable")
        depths = np.repeat(np.arange(1, DEPTH + 1), 1 + len(_RANKS))[order]
        root = np.ones(1)
        nodes = DraftedNodes(
            np.concatenate([[0], depths])[None], np.concatenate([root, claimed[order]])[None]
        )
        return nodes, np.concatenate([root, true[order]])


def _nodes(holds: float) -> np.ndarray:
    """Chances of the main path's nodes and of their siblings, depth after depth."""
    reached = holds ** np.arange(DEPTH)[:, None]
    return (reached * np.concatenate([[holds], (1 - holds) * _RANKS])).reshape(-1)


def accepted_nodes(nodes: DraftedNodes, true: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """[N] bool: one path, drawn by the true chances."""
    accepted = np.zeros(len(true), dtype=bool)
    accepted[0] = True
    reached = 1.0
    for depth in range(1, DEPTH + 1):
        (columns,) = np.nonzero(nodes.depths[0] == depth)
        chances = true[columns] / reached
        draw = np.searchsorted(chances.cumsum(), rng.random())
        if draw == len(columns):
            break
        accepted[columns[draw]] = True
        main = columns[true[columns].argmax()] if depth < DEPTH else -1
        if columns[draw] != main:
            break
        reached = true[columns[draw]]
    return accepted


def best_rate(device: Device, texts: list[Text], steps: int = 2_000) -> tuple[float, int]:
    """Tokens a millisecond of the best fixed width, by brute force, and that width."""
    rng = np.random.default_rng(1)
    curve = np.zeros(len(WIDTHS))
    for text in texts:
        drawn = [text.step(rng)[1].cumsum() for _ in range(steps // len(texts))]
        curve += np.mean(drawn, axis=0)[np.minimum(WIDTHS, 1 + 4 * DEPTH) - 1]
    rates = curve / device.times(len(texts))
    return float(rates.max()), WIDTHS[int(rates.argmax())]


class Served(NamedTuple):
    """What came of every step."""

    tokens: np.ndarray
    times: np.ndarray
    widths: np.ndarray

    def rate(self, start: int, stop: int | None = None) -> float:
        """Tokens a millisecond of some of the steps."""
        return float(self.tokens[start:stop].sum() / self.times[start:stop].sum())


def serve(
    device: Device,
    texts: list[Text],
    steps: int,
    costs: CostModel | None = None,
    noise: float = 0.1,
    seed: int = 0,
    then: list[Text] | None = None,
) -> Served:
    """Let the policy decode.

    Args:
        noise: of the measured times, relative.
        then: what the texts become halfway.

    Returns:
        The expected tokens, the milliseconds and the nodes of each step.
    """
    rng = np.random.default_rng(seed)
    costs = costs or device.cost_model()
    policy = WidthPolicy(WIDTHS, costs)
    bs = len(texts)
    rows, zeros = np.arange(bs), np.zeros(bs, dtype=np.int64)
    model = AcceptModel(bs, WIDTHS, DEPTH)
    model.restart(rows, zeros, zeros)
    kinds = model.meet(rows)
    tokens, times, widths = [], [], []
    rest = 0
    for at in range(steps):
        if then is not None and at == steps // 2:
            texts = then
        rest -= 1
        width, gained = 1, float(bs)
        if rest <= 0:
            outlook = policy.look_ahead(model.remembered(kinds), CONTEXT * bs)
            rest = outlook.rest
            model.grow_older(kinds.rows, max(rest, 1))
        if rest == 0:
            drawn = [text.step(rng) for text in texts]
            parts = zip(*(d[0] for d in drawn), strict=True)
            nodes = DraftedNodes(*(np.concatenate(part)[:, : outlook.ceiling] for part in parts))
            log_values = np.log(np.maximum(nodes.values, 1e-30)).astype(np.float32)
            calibration = model.calibration(kinds, np.tile((99, DEPTH), (bs, 1)))
            curves = calibration.curves(*map(torch.from_numpy, (log_values, nodes.depths))).numpy()
            width = policy.choose(curves.sum(axis=0).tolist(), outlook).nodes
            accepted = np.stack([accepted_nodes(one, true, rng) for one, true in drawn])
            gained = sum(true[:width].sum() for _, true in drawn)
            model.learn(kinds, nodes, accepted[:, :width])
            model.remember(kinds, curves)
            model.remember_origins(kinds, curves, np.ones(bs, dtype=np.int64))
        step = Step(bs, width, CONTEXT * bs)
        took = device.milliseconds(step)
        costs.correct(Measured(step, took * float(np.exp(noise * rng.standard_normal()))))
        tokens.append(gained)
        times.append(took)
        widths.append(width)
    return Served(np.array(tokens), np.array(times), np.array(widths))
