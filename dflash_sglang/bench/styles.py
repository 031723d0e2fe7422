"""How a mode looks in pictures: the same in every one, whatever stands beside it."""

from __future__ import annotations

import math
from typing import NamedTuple

from matplotlib.colors import to_hex, to_rgb

from dflash_sglang.bench.modes import Kind, parse_mode

_DASHES = ("-", "--", "-.", ":")
_MIDDLE = 4.0  # the colour of a kind is that of 2**4 nodes
_STRONGEST = 0.6  # of white or black in the lightest and the darkest shade


class Style(NamedTuple):
    """A colour and, for lines, a format of matplotlib's."""

    colour: str
    line: str


# Okabe and Ito's palette, which colour-blind readers can tell apart. Lines that lie on each other,
# as two greedy chains do, must both be seen.
_KINDS = {
    Kind.PLAIN: Style("#555555", ":o"),
    Kind.NATIVE: Style("#E69F00", "-s"),
    Kind.CHAIN: Style("#56B4E9", "--o"),
    Kind.TREE: Style("#009E73", "-D"),
    Kind.ADAPTIVE: Style("#0072B2", "-*"),
    Kind.NGRAM: Style("#CC79A7", "-.v"),
    Kind.EAGLE3: Style("#D55E00", "-^"),
}

# Parts of a step, which are none of the modes' colours.
UNTIMED = "everything else"
PHASE_COLOURS = {"draft": "#F0E442", "verify": "#3B7080", "commit": "#A0522D", UNTIMED: "#BBBBBB"}


def style(name: str) -> Style:
    """The style of a mode; more nodes are a darker shade of their kind's colour."""
    mode = parse_mode(name)
    base = _KINDS[mode.kind]
    if mode.nodes is None:
        return base
    doublings = math.log2(mode.nodes)
    share = max(-1.0, min(1.0, (doublings - _MIDDLE) / 3)) * _STRONGEST
    dash = _DASHES[round(doublings) % len(_DASHES)]
    return Style(_shade(base.colour, share), f"{dash}{base.line[-1]}")


def _shade(colour: str, share: float) -> str:
    """Mixed with black, or with white where ``share`` is negative."""
    towards = 0.0 if share > 0 else 1.0
    red, green, blue = ((1 - abs(share)) * part + abs(share) * towards for part in to_rgb(colour))
    return to_hex((red, green, blue))
