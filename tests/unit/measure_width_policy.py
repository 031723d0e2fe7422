"""What choosing a width costs, alone in a loop: processor microseconds of policy and statistics.

    python tests/unit/measure_width_policy.py

Beside a model, whose weights empty the processor's caches at every step, it is about three times as
much: that is measured in the server itself, which keeps its plans accordingly long
(``adaptive.thrift``).
"""

from __future__ import annotations

import time
from unittest.mock import patch

import torch

from dflash_sglang.engine import widths as engine_widths
from dflash_sglang.tree.build import first_nodes
from tests.unit.width_batches import adaptive_width, batch_of, chain, request, verdict

_STEPS = 400


def microseconds(bs: int, nodes: int) -> float:
    widths, limits = adaptive_width(nodes)
    requests = [request(row) for row in range(bs)]
    batch = batch_of(requests)
    limits.admit(requests)
    widths.admit(requests)
    trees = [first_nodes(chain(bs, nodes), count) for count in range(1, nodes + 1)]
    rows, delivered = torch.arange(bs), verdict(bs)
    clock = _Clock()
    drafted = 0
    with patch.object(engine_widths, "perf_counter", clock.now):
        started = time.process_time()
        for _ in range(_STEPS):
            drafted_nodes = widths.nodes(batch)
            if drafted_nodes > 1:
                drafted += 1
                widths.cut(trees[drafted_nodes - 1])
                widths.learn(delivered)
            limits.bound(requests, rows, trees[0])
            leg = widths._plan.leg
            clock.seconds += 1e-3 * leg.forwards * leg.width.milliseconds
        took = time.process_time() - started
    assert drafted > 0.9 * _STEPS, f"only {drafted} of {_STEPS} steps drafted"
    return 1e6 * took / _STEPS


class _Clock:
    """Of steps that take what they are expected to, and of choices that take no time at all."""

    seconds = 0.0

    def now(self) -> float:
        return self.seconds


if __name__ == "__main__":
    torch.set_num_threads(1)
    for bs in (1, 4, 8, 16):
        costs = ", ".join(f"{n} nodes {microseconds(bs, n):.0f} us" for n in (16, 32))
        print(f"{bs} requests: {costs}")
