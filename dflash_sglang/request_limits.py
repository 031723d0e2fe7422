"""What one request may ask of its own speculation, under its key ``dflash2``.

Limits bound what a request gets in a step, never what it says: its text is the target's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

KEY = "dflash2"


class LimitsError(ValueError):
    """A request's limits that cannot be honoured."""


class RequestLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One request's bounds; what is left out is the server's.

    Attributes:
        max_depth: draft tokens accepted in a step at most.
        nodes: nodes verified for the request in a step at most, root included.
        speculate: false for plain decoding.
    """

    max_depth: Annotated[int, msgspec.Meta(ge=1)] | None = None
    nodes: Annotated[int, msgspec.Meta(ge=1)] | None = None
    speculate: bool = True

    def most_nodes(self, server_nodes: int) -> int:
        """Nodes that count for the request where the server verifies so many."""
        if not self.speculate:
            return 1
        return server_nodes if self.nodes is None else min(self.nodes, server_nodes)

    def most_depth(self, server_depth: int) -> int:
        """Greatest depth that counts where the server's is so much."""
        return server_depth if self.max_depth is None else min(self.max_depth, server_depth)


_NONE = RequestLimits()


def parse_limits(custom_params: Mapping[str, Any] | None) -> RequestLimits:
    """Read a request's limits.

    Raises:
        LimitsError: an unknown key or a value out of range; the sentence shows what is allowed.
    """
    if not custom_params or KEY not in custom_params:
        return _NONE
    try:
        return msgspec.convert(custom_params[KEY], type=RequestLimits)
    except msgspec.ValidationError as error:
        raise LimitsError(
            f'"{KEY}" of the request: {error}. Expected for example '
            '{"max_depth": 4, "nodes": 16, "speculate": true}.'
        ) from error


def without_limits(custom_params: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A request's custom parameters as they would be had it set no limits."""
    if custom_params is None:
        return None
    return {name: value for name, value in custom_params.items() if name != KEY}
