"""Pearson's test of a sample against a law."""

from __future__ import annotations

import torch
from torch import Tensor


def assert_law(outcomes: Tensor, law: Tensor, error_rate: float) -> None:
    """Fail if the sample deviates so much that a right sampler would do so at `error_rate` at most.

    Args:
        outcomes: [n] int64, indices into the law.
        law: [k] probabilities. Outcomes expected less than five times are counted together.
        error_rate: probability of failing by chance.
    """
    n = outcomes.shape[0]
    observed = torch.bincount(outcomes, minlength=law.shape[0]).double()
    expected = law.double() * n
    assert observed.shape == expected.shape, "an outcome outside the law"
    assert observed[expected == 0].sum() == 0, "an impossible outcome"
    rare = expected < 5
    observed = torch.cat((observed[~rare], observed[rare].sum().view(1)))
    expected = torch.cat((expected[~rare], expected[rare].sum().view(1)))
    if expected[-1] < 5:  # too rare even together: merge into the last common outcome
        observed = torch.cat((observed[:-2], observed[-2:].sum().view(1)))
        expected = torch.cat((expected[:-2], expected[-2:].sum().view(1)))
    statistic = ((observed - expected) ** 2 / expected).sum()
    freedom = torch.tensor(float(expected.shape[0] - 1), dtype=torch.float64)
    p_value = float(torch.special.gammaincc(freedom / 2, statistic / 2))
    assert p_value > error_rate, f"chi-square {float(statistic):.1f}, p = {p_value:.2g}"
