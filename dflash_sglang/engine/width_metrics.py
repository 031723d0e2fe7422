"""The width policy's figures on SGLang's own /metrics page."""

from __future__ import annotations

from dflash_sglang.adaptive.telemetry import WidthLog


class WidthMetrics:
    """Counters of what was promised of widths and what came; rates are left to the reader.

    They are made after SGLang's, which sets up the folder that its processes share.
    """

    def __init__(self) -> None:
        from prometheus_client import Counter

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"dflash2_{name}", text, labels)

        self._promised_tokens = counter("promised_tokens", "Tokens that steps were to bring.")
        self._promised_ms = counter(
            "promised_milliseconds", "Milliseconds that steps were to take."
        )
        self._tokens = counter("tokens", "Tokens that steps brought.")
        self._ms = counter("milliseconds", "Milliseconds that steps took.")
        self._choosing_ms = counter("choosing_milliseconds", "Of these, what choosing widths took.")
        self._fixed_tokens = counter(
            "fixed_tokens", "Tokens that one width, had it been kept, was to bring.", "nodes"
        )
        self._fixed_ms = counter(
            "fixed_milliseconds", "Milliseconds that one width was to take.", "nodes"
        )

    def add(self, log: WidthLog) -> None:
        """Take in a stretch of steps."""
        self._promised_tokens.inc(log.promised_tokens)
        self._promised_ms.inc(log.promised_ms)
        self._tokens.inc(log.tokens)
        self._ms.inc(log.ms)
        self._choosing_ms.inc(log.choosing_ms)
        columns = zip(log.widths, log.fixed_tokens, log.fixed_ms, strict=True)
        for nodes, tokens, milliseconds in columns:
            self._fixed_tokens.labels(str(nodes)).inc(float(tokens))
            self._fixed_ms.labels(str(nodes)).inc(float(milliseconds))
