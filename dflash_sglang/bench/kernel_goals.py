"""``dflash2 kernels goals``: the ratios that the CPU kernels are held to, from one run.

Every goal is measured in turns, kernel then rival, so that other load on the machine meets both;
the ratio is the median of the rounds. Time is processor time of one thread, without waiting.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import NamedTuple

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor

from dflash_sglang.config import ConvConfig
from dflash_sglang.drafter.convolution import GroupedDynamicConv
from dflash_sglang.host import bootstrap
from dflash_sglang.kernels import examples, library
from dflash_sglang.kernels.attention import AttentionPlan, BlockMask, MaskMode, paged_attention
from dflash_sglang.kernels.draw import draw_tokens
from dflash_sglang.kernels.linear import linear
from dflash_sglang.kernels.truncation import Truncation

REQUESTS, NODES, CANDIDATES = 8, 32, 16
CONTEXT = 1024
ROWS, VOCABULARY = 16, 151_936


class HeadShape(NamedTuple):
    """Attention heads of a target."""

    heads: int
    kv_heads: int
    width: int


WIDE_HEADS = HeadShape(16, 8, 128)  # of Qwen3-0.6B


class Goal(NamedTuple):
    """One promise: how often the kernel's time fits into the rival's."""

    name: str
    rival: str  # what it is compared with
    least: float  # ratio of times that is promised
    kernel: Callable[[], object]
    compared: Callable[[], object]
    agrees: str  # how far the results are equal


class Result(NamedTuple):
    """One goal, measured; times are medians in milliseconds."""

    goal: Goal
    kernel_ms: float
    compared_ms: float
    ratio: float


def print_goals(target: Path, rounds: int) -> bool:
    """Measure and print every goal; True if all are met.

    Args:
        target: checkpoint of the target whose verify step the tree is compared with.
        rounds: turns of each goal.

    Raises:
        KernelBuildError: the kernels could not be compiled.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        mode = library.load()
        results = [measure(goal, rounds) for goal in goals(target)]
    finally:
        torch.set_num_threads(threads)
    table = Table("goal", "kernel", "rival", "ratio", "promised")
    for goal, kernel_ms, compared_ms, ratio in results:
        met = "" if ratio >= goal.least else " [red]missed[/red]"
        subject = f"{goal.name}\n[dim]against {goal.rival}; {goal.agrees}[/dim]"
        times = (f"{kernel_ms:.3g} ms", f"{compared_ms:.3g} ms")
        table.add_row(subject, *times, f"{ratio:.3g}{met}", f">= {goal.least:g}")
    console = Console()
    console.print(f"kernels: {mode}; one thread, {rounds} rounds in turns", highlight=False)
    console.print(table)
    return all(result.ratio >= result.goal.least for result in results)


def goals(target: Path) -> list[Goal]:
    """What is promised; see the issue's list in docs/kernels.md."""
    with torch.inference_mode():
        config = json.loads((target / "config.json").read_text())
        own = HeadShape(
            config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
        )
        attention = [
            tree_attention(shape, dtype)
            for shape in (own, WIDE_HEADS)
            for dtype in (torch.float32, torch.bfloat16)
        ]
        return [tree_goal(target), draw_goal(), *attention, convolution_goal()]


def measure(goal: Goal, rounds: int) -> Result:
    """Time a goal's two sides in turns."""
    times: list[tuple[float, float]] = []
    with torch.inference_mode():
        repeats = [_repeats(side) for side in (goal.kernel, goal.compared)]
        for _ in range(rounds):
            times.append((_ms(goal.kernel, repeats[0]), _ms(goal.compared, repeats[1])))
    kernel, compared = (median(side) for side in zip(*times, strict=True))
    return Result(goal, kernel, compared, median(slow / fast for fast, slow in times))


def tree_goal(target: Path) -> Goal:
    """Tree build, layout and walk, against the products of a verify step over every node.

    A verify step is more than its products (norms, attention, draws, SGLang), so the ratio is a
    lower bound.
    """
    sizes = examples.Sizes(bs=REQUESTS, candidates=CANDIDATES, nodes=NODES, vocabulary=1000)
    calls = examples.calls(sizes)
    steps = [(library.operator(n), calls[n]) for n in ("build_tree", "tree_layout", "walk_tree")]

    def run_tree() -> None:
        for operator, call in steps:
            operator(*call)

    weights = _products(json.loads((target / "config.json").read_text()))
    inputs = {w.shape[1]: torch.randn(REQUESTS * NODES, w.shape[1]) for w in weights}

    def run_products() -> None:
        for weight in weights:
            linear(inputs[weight.shape[1]], weight)

    name = f"tree build + layout + walk, bs {REQUESTS}, N {NODES}, K {CANDIDATES}"
    rival = f"the target's products of one verify step ({target.name}, float32)"
    return Goal(name, rival, 20.0, run_tree, run_products, "at most 5 % of the step is 20 times")


def draw_goal() -> Goal:
    """Seeded draws with top-k and top-p, against what SGLang runs for them."""
    sampler = _sglang_sampler()
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(ROWS, 1, VOCABULARY, generator=generator) * 3
    temperatures = torch.full((ROWS,), 0.8)
    seeds, positions = torch.arange(ROWS), torch.arange(ROWS) + 100
    law = Truncation(torch.full((ROWS,), 50), torch.full((ROWS,), 0.95))

    def ours() -> Tensor:
        where = positions.unsqueeze(1)
        return draw_tokens(logits, temperatures, seeds, where, law, noise_by_rank=True)

    def sglangs() -> Tensor:
        probs = torch.softmax(logits[:, 0] / temperatures.unsqueeze(1), dim=-1)
        return sampler.top_k_top_p_min_p_sampling_from_probs_torch(
            probs, *law[:2], torch.zeros(ROWS), False, seeds, positions
        )

    same = int((ours()[:, 0] == sglangs().view(-1)).sum())
    name = f"seeded draw, V {VOCABULARY:,}, {ROWS} rows, top-k 50, top-p 0.95"
    rival = "SGLang's sort and multinomial_with_seed"
    return Goal(name, rival, 5.0, ours, sglangs, f"{same} of {ROWS} tokens equal")


def tree_attention(shape: HeadShape, dtype: torch.dtype) -> Goal:
    """Tree attention over paged prefixes, against masked PyTorch attention for every request."""
    heads, kv_heads, width = shape
    keys = CONTEXT + NODES
    generator = torch.Generator().manual_seed(0)
    slots = torch.randperm(REQUESTS * keys, generator=generator).int().view(REQUESTS, keys)
    q = torch.randn(REQUESTS * NODES, heads, width, generator=generator).to(dtype)
    cache = torch.randn(2, REQUESTS * keys, kv_heads, width, generator=generator).to(dtype)
    mask = _tree_mask()  # [bs, N, N]
    offsets = torch.arange(REQUESTS) * NODES**2
    plan = AttentionPlan(
        slots,
        torch.arange(REQUESTS),
        torch.arange(REQUESTS + 1) * NODES,
        torch.full((REQUESTS,), keys),
        BlockMask(mask.flatten(), offsets, torch.full((REQUESTS,), NODES)),
    )
    out = torch.empty_like(q)
    prefix = torch.ones(NODES, CONTEXT, dtype=torch.bool)
    seen = [torch.cat((prefix, mask[r]), dim=1) for r in range(REQUESTS)]  # [N, keys] each

    def ours() -> Tensor:
        paged_attention(q, cache[0], cache[1], out, plan, MaskMode.TREE, scale=width**-0.5)
        return out

    def pytorchs() -> Tensor:
        parts = []
        for r, queries in enumerate(q.split(NODES)):
            k, v = (side[slots[r].long()].transpose(0, 1) for side in cache)  # [Hkv, keys, d]
            part = F.scaled_dot_product_attention(
                queries.transpose(0, 1)[None], k[None], v[None], seen[r], enable_gqa=True
            )
            parts.append(part[0].transpose(0, 1))
        return torch.cat(parts)

    difference = float((ours().float() - pytorchs().float()).abs().max())
    name = (
        f"tree attention, bs {REQUESTS}, N {NODES}, context {CONTEXT:,}, {heads} heads of {width}, "
        f"{kv_heads} of keys, {_short(dtype)}"
    )
    rival = "masked scaled_dot_product_attention a request"
    return Goal(name, rival, 3.0, ours, pytorchs, f"differ by {difference:.0e}")


def convolution_goal() -> Goal:
    """The grouped dynamic convolution, against the drafter's own PyTorch expression."""
    block, width = 8, 2048
    conv = GroupedDynamicConv(width, ConvConfig(kind="dynamic", kernel_size=4, group_size=16))
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(REQUESTS, block, width, generator=generator)
    delta = torch.randn(REQUESTS, block, 2, 4, width // 16, generator=generator)[:, :, 0]
    base = torch.randn(4, width, generator=generator)
    fused = GroupedDynamicConv(width, ConvConfig(kind="dynamic", kernel_size=4, group_size=16))
    fused.fused = True

    def ours() -> Tensor:
        return fused._convolve(x, delta, base)

    def pytorchs() -> Tensor:
        return conv._convolve(x, delta, base)

    difference = float((ours() - pytorchs()).abs().max())
    name = f"grouped convolution, bs {REQUESTS}, block {block}, D {width:,}, float32"
    rival = "the drafter's PyTorch expression"
    return Goal(name, rival, 3.0, ours, pytorchs, f"differ by {difference:.0e}")


def _products(config: dict) -> list[Tensor]:
    """Weights of a Qwen 3 target, [out, in] each: layers, then the head."""
    width, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    layer = [
        ((heads + 2 * kv_heads) * head, width),
        (width, heads * head),
        (2 * inner, width),
        (width, inner),
    ]
    shapes = layer * config["num_hidden_layers"] + [(config["vocab_size"], width)]
    return [torch.randn(shape) * shape[1] ** -0.5 for shape in shapes]


def _tree_mask() -> Tensor:
    """Ancestors of random trees, [bs, N, N] bool."""
    generator = torch.Generator().manual_seed(0)
    parents = torch.full((REQUESTS, NODES), -1)
    for node in range(1, NODES):
        parents[:, node] = torch.randint(0, node, (REQUESTS,), generator=generator)
    layout = library.operator("tree_layout")
    return layout(parents, torch.zeros_like(parents), torch.zeros(REQUESTS, dtype=torch.int64))[1]


def _sglang_sampler() -> ModuleType:
    os.environ.setdefault(bootstrap.CPU_ENGINE_VARIABLE, "1")
    bootstrap.install()
    from sglang.srt.layers import sampler

    return sampler


def _repeats(side: Callable[[], object]) -> int:
    """So many calls that one turn takes some ten milliseconds."""
    side()
    return max(1, round(20.0 / max(_ms(side, 1), 0.01)))


def _ms(side: Callable[[], object], repeats: int) -> float:
    start = time.process_time()
    for _ in range(repeats):
        side()
    return (time.process_time() - start) / repeats * 1e3


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
