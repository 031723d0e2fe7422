"""Typed look-up in a drafter's ``config.json``, whose fields may stand in one of two places."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


class ConfigError(ValueError):
    """A drafter configuration that is missing, contradictory or unsupported; one sentence."""


class Fields:
    """The top level of ``config.json`` and its ``dflash_config``, read as one table."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        nested = raw.get("dflash_config")
        if nested is not None and not isinstance(nested, Mapping):
            raise ConfigError(f"dflash_config must be an object, got {type(nested).__name__}.")
        self._top = raw
        self._nested: Mapping[str, Any] = nested or {}

    def get(self, key: str, default: Any = None) -> Any:
        """The value from either place; null counts as absent. Raises when the two disagree."""
        top, nested = self._top.get(key), self._nested.get(key)
        if top is not None and nested is not None and top != nested:
            raise ConfigError(
                f"{key} stands twice with different values: {top!r} at the top level and "
                f"{nested!r} in dflash_config."
            )
        value = nested if nested is not None else top
        return default if value is None else value

    def integer(self, key: str, *, minimum: int = 1, default: int | None = None) -> int:
        value = self.get(key, default)
        if value is None:
            raise ConfigError(f"{key} is missing.")
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise ConfigError(f"{key} must be an integer of at least {minimum}, got {value!r}.")
        return value

    def optional_integer(self, key: str, *, minimum: int = 1) -> int | None:
        return None if self.get(key) is None else self.integer(key, minimum=minimum)

    def number(self, key: str, *, default: float | None = None) -> float:
        """A positive finite number."""
        value = self.get(key, default)
        if value is None:
            raise ConfigError(f"{key} is missing.")
        if isinstance(value, bool) or not isinstance(value, int | float) or not _positive(value):
            raise ConfigError(f"{key} must be a positive number, got {value!r}.")
        return float(value)

    def optional_boolean(self, key: str) -> bool | None:
        value = self.get(key)
        if value is not None and not isinstance(value, bool):
            raise ConfigError(f"{key} must be true or false, got {value!r}.")
        return value

    def boolean(self, key: str, *, default: bool) -> bool:
        value = self.optional_boolean(key)
        return default if value is None else value


def _positive(value: float) -> bool:
    return math.isfinite(value) and value > 0
