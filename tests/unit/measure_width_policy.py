"""What choosing a width costs a step: processor microseconds of policy and statistics.

python tests/unit/measure_width_policy.py
"""

from __future__ import annotations

import time
from types import SimpleNamespace
from unittest.mock import patch

import torch

from dflash_sglang.config import DFlash2Config
from dflash_sglang.engine import widths as engine_widths
from dflash_sglang.engine.limits import LimitTable
from dflash_sglang.engine.widths import AdaptiveWidth
from dflash_sglang.kernels.walk import Verdict
from dflash_sglang.options import Tuning, resolve_options
from dflash_sglang.tree.build import DraftTree, first_nodes
from tests.engine.checkpoints import drafter_fields

_STEPS = 400


def request(row: int) -> SimpleNamespace:
    """As much of SGLang's request as is read."""
    return SimpleNamespace(
        rid=str(row),
        kv=SimpleNamespace(req_pool_idx=row),
        sampling_params=SimpleNamespace(custom_params=None, top_k=1, max_new_tokens=10_000),
        grammar=None,
        tokenizer=None,
        origin_input_ids=[1] * 300,
        output_ids=[],
    )


def chain(bs: int, nodes: int) -> DraftTree:
    columns = torch.arange(nodes).expand(bs, nodes)
    return DraftTree(
        tokens=columns,
        parents=columns - 1,
        depths=columns.clamp(max=7),
        log_values=-0.2 * columns.float(),
        num_nodes=torch.full((bs,), nodes),
    )


def microseconds(bs: int, nodes: int) -> float:
    options = resolve_options(
        DFlash2Config.from_dict(drafter_fields()),
        device="cpu",
        num_steps=None,
        num_draft_tokens=nodes,
        topk=None,
        draft_vocabulary=None,
        tuning=Tuning(adaptive=True),
    )
    limits = LimitTable(64, nodes, options.max_depth, "cpu")
    widths = AdaptiveWidth(options, 64, limits, SimpleNamespace(world_size=1), [], None)
    requests = [request(row) for row in range(bs)]
    batch = SimpleNamespace(
        reqs=requests,
        seq_lens_cpu=torch.full((bs,), 300),
        has_grammar=False,
        return_logprob=False,
        sampling_info=SimpleNamespace(has_custom_logit_processor=False),
    )
    limits.admit(requests)
    widths.admit(requests)
    trees = [first_nodes(chain(bs, nodes), count) for count in range(1, nodes + 1)]
    rootward = torch.full((bs, 8), -1)  # two nodes are accepted, which every width has
    rootward[:, :2] = torch.arange(2)
    verdict = Verdict(rootward, torch.full((bs,), 2), torch.zeros(bs, 8), torch.zeros(bs))
    rows = torch.arange(bs)
    clock = _Clock()
    drafted = 0
    with patch.object(engine_widths, "perf_counter", clock.now):
        started = time.process_time()
        for _ in range(_STEPS):
            drafted_nodes = widths.nodes(batch)
            if drafted_nodes > 1:
                drafted += 1
                widths.cut(trees[drafted_nodes - 1])
                widths.learn(verdict)
            limits.bound(requests, rows, trees[0])
            clock.seconds += 1e-3 * widths._plan.forwards * widths._plan.width.milliseconds
        took = time.process_time() - started
    assert drafted > 0.9 * _STEPS, f"only {drafted} of {_STEPS} steps drafted"
    return 1e6 * took / _STEPS


class _Clock:
    """Of steps that take what they are expected to."""

    seconds = 0.0

    def now(self) -> float:
        return self.seconds


if __name__ == "__main__":
    torch.set_num_threads(1)
    for bs in (1, 4, 8, 16):
        costs = ", ".join(f"{n} nodes {microseconds(bs, n):.0f} us" for n in (16, 32))
        print(f"{bs} requests: {costs}")
