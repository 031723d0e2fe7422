"""What speculation can bring, as formulas: intensity, bandwidth, verify and draft time, tau.

After section 2 of the article that this project started from, and the roofline model of Williams,
Waterman and Patterson (2009). Everything computed here is a projection and says so: a
:class:`Formula` returns a figure that carries its own text and inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, product
from operator import mul
from typing import NamedTuple

from dflash_sglang.bench.errors import BenchError
from dflash_sglang.bench.provenance import Figure, Projected


class Formula(NamedTuple):
    """A formula that can be shown and computed."""

    text: str
    unit: str
    compute: Callable[..., float]

    def __call__(self, **inputs: float) -> Figure:
        """Project; the names of the inputs are those in the text."""
        return Figure(
            value=self.compute(**inputs),
            unit=self.unit,
            provenance=Projected(formula=self.text, inputs=inputs),
        )


PREFILL_INTENSITY = Formula(
    "I = 2 N / b (N prompt tokens, b bytes per weight)",
    "FLOP/byte",
    lambda N, b: 2 * N / b,
)
DECODE_INTENSITY = Formula("I = 2 n / b (n tokens in a step)", "FLOP/byte", lambda n, b: 2 * n / b)
SATURATION_INTENSITY = Formula("I_sat = F / W (FLOP/s, bytes/s)", "FLOP/byte", lambda F, W: F / W)
BASELINE_RATE = Formula("W / M (bytes/s, bytes of weights)", "tok/s", lambda W, M: W / M)
STEP_MS = Formula(
    "1000 max(M / W, 2 P n / F) (weights, bandwidth, parameters, tokens in a step, FLOP/s)",
    "ms",
    lambda M, W, P, n, F: 1000 * max(M / W, 2 * P * n / F),
)
TOKEN_MS = Formula(
    "(T_draft + T_verify) / tau",
    "ms",
    lambda T_draft, T_verify, tau: (T_draft + T_verify) / tau,
)
RATE = Formula(
    "1000 tau / (T_draft + T_verify)",
    "tok/s",
    lambda T_draft, T_verify, tau: 1000 * tau / (T_draft + T_verify),
)
SPEEDUP = Formula(
    "T_plain tau / (T_draft + T_verify)",
    "x",
    lambda T_plain, T_draft, T_verify, tau: T_plain * tau / (T_draft + T_verify),
)


class Window(NamedTuple):
    """A shape of draft and what is expected of it."""

    depth: int  # drafted positions
    width: int  # candidates verified at each of them; 1 is a chain
    nodes: int  # verified in a step, root included
    tau: float  # tokens committed per step, bonus included
    step_ms: float  # draft and verify
    rate: float  # tokens/s


def expected_tau(acceptance: Sequence[Sequence[float]], depth: int, width: int) -> float:
    """Tokens per step of a spine of best candidates with ``width`` - 1 leaves beside each.

    Args:
        acceptance: ``acceptance[position][w - 1]`` is the chance that the target's token is among
            the w best candidates of the position, given that the best was right before it.

    tau = 1 + sum_j (prod_{i<j} a_i(1)) a_j(width): a leaf may be accepted but leads nowhere.
    """
    spine = [1.0, *accumulate((row[0] for row in acceptance[:depth]), mul)]
    return 1.0 + sum(spine[j] * acceptance[j][width - 1] for j in range(depth))


def best_window(
    acceptance: Sequence[Sequence[float]],
    verify_ms: Callable[[int], float],
    draft_ms: float,
) -> Window:
    """The depth and width with the highest projected rate; depth 0 is plain decoding.

    Args:
        acceptance: as for :func:`expected_tau`; a row a position, all of one length.
        verify_ms: cost curve, time of a target forward over n tokens.
        draft_ms: time of a draft, whatever its depth.

    Raises:
        BenchError: probabilities outside 0 to 1, falling with the width, or ragged rows.
    """
    check_acceptance(acceptance)
    widths = range(1, len(acceptance[0]) + 1)
    windows = [Window(0, 1, 1, 1.0, verify_ms(1), 1000 / verify_ms(1))]
    for depth, width in product(range(1, len(acceptance) + 1), widths):
        nodes = 1 + depth * width
        tau = expected_tau(acceptance, depth, width)
        step = draft_ms + verify_ms(nodes)
        windows.append(Window(depth, width, nodes, tau, step, 1000 * tau / step))
    return max(windows, key=lambda window: window.rate)


def linear_cost(base_ms: float, per_token_ms: float) -> Callable[[int], float]:
    """The cost curve base + per_token n."""
    return lambda n: base_ms + per_token_ms * n


def check_acceptance(acceptance: Sequence[Sequence[float]]) -> None:
    """Refuse what is no acceptance curve.

    Raises:
        BenchError: probabilities outside 0 to 1, falling with the width, or ragged rows.
    """
    if not acceptance or not acceptance[0]:
        raise BenchError("an acceptance curve needs at least one position, got none.")
    for row in acceptance:
        if len(row) != len(acceptance[0]):
            raise BenchError("each position needs the same number of widths in the curve.")
        if any(not 0 <= chance <= 1 for chance in row) or list(row) != sorted(row):
            raise BenchError(
                f"chances lie between 0 and 1 and grow with the width, got {list(row)}."
            )
