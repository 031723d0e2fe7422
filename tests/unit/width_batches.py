"""Batches and trees as much as the choice of widths reads of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from dflash_sglang.config import DFlash2Config
from dflash_sglang.engine.limits import LimitTable
from dflash_sglang.engine.widths import AdaptiveWidth
from dflash_sglang.kernels.walk import Verdict
from dflash_sglang.options import Tuning, resolve_options
from dflash_sglang.tree.build import DraftTree
from tests.engine.checkpoints import drafter_fields

_ROWS = 64


def request(row: int) -> Any:
    """One of SGLang's requests."""
    return SimpleNamespace(
        rid=str(row),
        kv=SimpleNamespace(req_pool_idx=row),
        sampling_params=SimpleNamespace(
            custom_params=None, top_k=1, max_new_tokens=10_000, ignore_eos=True
        ),
        grammar=None,
        tokenizer=None,
        origin_input_ids=[1] * 300,
        output_ids=[],
    )


def batch_of(requests: list[Any]) -> Any:
    """A decode batch."""
    return SimpleNamespace(
        reqs=requests,
        seq_lens_cpu=torch.full((len(requests),), 300),
        has_grammar=False,
        return_logprob=False,
        sampling_info=SimpleNamespace(has_custom_logit_processor=False),
    )


def adaptive_width(nodes: int) -> tuple[AdaptiveWidth, LimitTable]:
    """The choice of widths up to so many nodes, and the limits that it reads."""
    options = resolve_options(
        DFlash2Config.from_dict(drafter_fields()),
        device="cpu",
        num_steps=None,
        num_draft_tokens=nodes,
        topk=None,
        draft_vocabulary=None,
        tuning=Tuning(adaptive=True),
    )
    limits = LimitTable(_ROWS, nodes, options.max_depth, "cpu")
    group = SimpleNamespace(world_size=1)
    return AdaptiveWidth(options, _ROWS, limits, group, [], None), limits


def chain(bs: int, nodes: int) -> DraftTree:
    """Draft trees whose nodes each hold with a chance of 0.8."""
    columns = torch.arange(nodes).expand(bs, nodes).contiguous()
    return DraftTree(
        tokens=columns,
        parents=columns - 1,
        depths=columns.clamp(max=7),
        log_values=-0.2 * columns.float(),
        num_nodes=torch.full((bs,), nodes),
    )


def verdict(bs: int) -> Verdict:
    """Two nodes are accepted, which every width has."""
    path = torch.full((bs, 8), -1)
    path[:, :2] = torch.arange(2)
    return Verdict(path, torch.full((bs,), 2), torch.zeros(bs, 8), torch.zeros(bs))
