"""What a dflash2 server counts of its decode steps on its /metrics page."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

_LABELS = ("nodes", "phase")


class Counters(NamedTuple):
    """One reading; ranks are added up, since they count the same steps."""

    sums: dict[str, float]  # counter -> value
    by_label: dict[str, dict[str, float]]  # counter with nodes or phases -> label -> value


async def read_counters(session: aiohttp.ClientSession, url: str) -> Counters | None:
    """A server's counts since it started; None where it does not publish them."""
    try:
        async with session.get(f"{url}/metrics") as response:
            if response.status != 200:
                return None
            return parse_counters(await response.text())
    except (aiohttp.ClientError, TimeoutError, UnicodeDecodeError):
        return None  # figures beside the measurement are no reason to lose it


def parse_counters(page: str) -> Counters | None:
    """The counts on a page in Prometheus' text format; None if there are none, or no such page."""
    sums: dict[str, float] = defaultdict(float)
    by_label: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    try:
        for family in text_string_to_metric_families(page):
            if not family.name.startswith("dflash2_"):
                continue
            for sample in family.samples:
                label = next((sample.labels[name] for name in _LABELS if name in sample.labels), "")
                if label:
                    by_label[sample.name][label] += sample.value
                else:
                    sums[sample.name] += sample.value
    except ValueError:
        return None
    return Counters(sums, by_label) if sums or by_label else None
