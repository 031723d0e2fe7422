"""Operators on accelerators: what ``csrc/device/entry_points.h`` launches, for CUDA and SYCL alike.

Each function allocates the outputs of an operator and launches one kernel. Nothing here looks at
values: that would wait for the device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

MAX_NODES = 256  # of a tree: they stand in memory that a work-group shares
MAX_CANDIDATES = 64  # of a position, of either kind: likewise
_WORK_GROUP = 256
_MOVE_SPLITS = 32  # work-groups that share the bytes of one KV buffer's slots

Argument: TypeAlias = Tensor | int | None


class Unsupported(ValueError):
    """A call that the device kernels do not serve; the reference does."""


class Device(Protocol):
    """Where kernels are launched."""

    sub_group: int  # threads of a sub-group (warp)

    def launch(self, kernel: str, groups: int, group_size: int, *arguments: Argument) -> None:
        """Launch on the current stream: tensors are passed as addresses, None as null."""


def build_tree(
    device: Device,
    tokens: Tensor,
    log_probs: Tensor,
    anchors: Tensor,
    num_nodes: int,
    max_depth: int,
    max_children: int,
) -> tuple[Tensor, ...]:
    bs, positions, K = tokens.shape
    if num_nodes > MAX_NODES:
        raise Unsupported(f"device kernels build trees of {MAX_NODES} nodes, got {num_nodes}")
    _expect("log_probs", log_probs, (bs, positions, K, K), torch.float32)
    columns = [tokens.new_empty(bs, num_nodes) for _ in range(3)]
    log_values, counts = log_probs.new_empty(bs, num_nodes), tokens.new_empty(bs)
    outputs = (*columns, log_values, counts)
    limits = (num_nodes, max_depth, max_children)
    device.launch(
        "dflash2_build_tree",
        bs,
        device.sub_group,
        tokens.contiguous(),
        log_probs,
        anchors.contiguous(),
        *log_probs.stride(),
        positions,
        K,
        *limits,
        *outputs,
    )
    return outputs


def tree_layout(
    device: Device, parents: Tensor, depths: Tensor, prefix_lens: Tensor
) -> tuple[Tensor, ...]:
    bs, nodes = parents.shape
    _expect("depths", depths, (bs, nodes), torch.int64)
    _expect("prefix_lens", prefix_lens, (bs,), torch.int64)
    positions, first_child, next_sibling = (parents.new_empty(bs, nodes) for _ in range(3))
    mask = parents.new_empty(bs, nodes, nodes, dtype=torch.bool)
    outputs = (positions, mask, first_child, next_sibling)
    inputs = (parents.contiguous(), depths.contiguous(), prefix_lens.contiguous())
    device.launch("dflash2_tree_layout", bs, device.sub_group, *inputs, nodes, *outputs)
    return outputs


def ancestor_bits(device: Device, parents: Tensor) -> Tensor:
    bs, nodes = parents.shape
    words = parents.new_empty(bs, nodes, -(-nodes // 64))
    device.launch("dflash2_ancestor_bits", bs, device.sub_group, parents.contiguous(), nodes, words)
    return words


def walk_tree(
    device: Device,
    tokens: Tensor,
    parents: Tensor,
    depths: Tensor,
    target_tokens: Tensor,
    max_depth: int,
) -> tuple[Tensor, ...]:
    bs, nodes = tokens.shape
    _expect("parents", parents, (bs, nodes), torch.int64)
    _expect("target_tokens", target_tokens, (bs, nodes), torch.int64)
    node_path, delivered = (tokens.new_empty(bs, max_depth + 1) for _ in range(2))
    accept_lens, bonus = (tokens.new_empty(bs) for _ in range(2))
    outputs = (node_path, accept_lens, delivered, bonus)
    inputs = (tokens.contiguous(), parents.contiguous(), target_tokens.contiguous())
    device.launch("dflash2_walk_tree", bs, device.sub_group, *inputs, nodes, max_depth, *outputs)
    return outputs


def commit_path(
    device: Device, node_path: Tensor, slots: Tensor, prefix_lens: Tensor, num_nodes: int
) -> tuple[Tensor, ...]:
    bs, length = node_path.shape
    width = slots.shape[1]
    _expect("slots", slots, (bs, max(width, length, num_nodes)), torch.int64)
    _expect("prefix_lens", prefix_lens, (bs,), torch.int64)
    columns = [node_path.new_empty(bs * length) for _ in range(5)]
    outputs = (*columns, prefix_lens.new_empty(bs))
    inputs = (node_path.contiguous(), slots.contiguous(), prefix_lens.contiguous())
    sizes = (length, width, num_nodes)
    device.launch("dflash2_commit_path", bs, device.sub_group, *inputs, *sizes, *outputs)
    return outputs


def greedy_tokens(device: Device, logits: Tensor) -> Tensor:
    bs, nodes, columns = logits.shape
    _expect("logits", logits, (bs, nodes, columns), torch.float32)
    tokens = logits.new_empty(bs, nodes, dtype=torch.int64)
    rows = logits.contiguous()
    device.launch("dflash2_greedy_tokens", bs * nodes, _WORK_GROUP, rows, columns, tokens)
    return tokens


def draw_tokens(
    device: Device,
    logits: Tensor,
    temperatures: Tensor,
    seeds: Tensor,
    positions: Tensor,
    top_ks: Tensor | None,
    top_ps: Tensor | None,
    min_ps: Tensor | None,
    noise_by_rank: bool,
    marks_doubt: bool,
) -> Tensor:
    bs, nodes, columns = logits.shape
    _expect("logits", logits, (bs, nodes, columns), torch.float32)
    _expect("temperatures", temperatures, (bs,), torch.float32)
    _expect("seeds", seeds, (bs,), torch.int64)
    _expect("positions", positions, (bs, nodes), torch.int64)
    tokens = logits.new_empty(bs, nodes, dtype=torch.int64)
    device.launch(
        "dflash2_draw_tokens",
        bs * nodes,
        _WORK_GROUP,
        logits.contiguous(),
        temperatures.contiguous(),
        seeds.contiguous(),
        positions.contiguous(),
        *_laws(bs, top_ks, top_ps, min_ps),
        nodes,
        columns,
        int(noise_by_rank),
        int(marks_doubt),
        tokens,
    )
    return tokens


def noisy_candidates(
    device: Device,
    unary_logits: Tensor,
    scale: Tensor,
    weight: Tensor,
    seeds: Tensor,
    positions: Tensor,
    top_ks: Tensor | None,
    top_ps: Tensor | None,
    min_ps: Tensor | None,
    num_inside: int,
    num_others: int,
) -> tuple[Tensor, ...]:
    bs, g, columns = unary_logits.shape
    if num_inside < 1 or num_others < 0 or num_inside + num_others > columns:
        raise ValueError(
            "noisy_candidates expects num_inside >= 1 and num_others >= 0 that fit into "
            f"{columns} columns, got {num_inside} and {num_others}"
        )
    if max(num_inside, num_others) > MAX_CANDIDATES:
        raise Unsupported(
            f"device kernels find {MAX_CANDIDATES} candidates of a kind, "
            f"got {max(num_inside, num_others)}"
        )
    _expect("unary_logits", unary_logits, (bs, g, columns), torch.float32)
    for name, numbers in (("scale", scale), ("weight", weight)):
        _expect(name, numbers, (bs,), torch.float32)
    _expect("seeds", seeds, (bs,), torch.int64)
    _expect("positions", positions, (bs, g), torch.int64)
    width = num_inside + num_others
    tokens = unary_logits.new_empty(bs, g, width, dtype=torch.int64)
    outputs = (tokens, *(unary_logits.new_empty(bs, g, width) for _ in range(3)))
    device.launch(
        "dflash2_noisy_candidates",
        bs * g,
        _WORK_GROUP,
        *(part.contiguous() for part in (unary_logits, scale, weight, seeds, positions)),
        *_laws(bs, top_ks, top_ps, min_ps),
        g,
        columns,
        num_inside,
        num_others,
        *outputs,
    )
    return outputs


def pair_scores(
    device: Device,
    gates: Tensor,
    anchors: Tensor,
    candidates: Tensor,
    unary: Tensor,
    predecessor_codebook: Tensor,
    successor_codebook: Tensor,
    temperatures: Tensor | None,
) -> Tensor:
    bs, positions, K = candidates.shape
    rank = predecessor_codebook.shape[1]
    _expect("gates", gates, (bs, positions, rank), predecessor_codebook.dtype)
    _expect("unary logits", unary, (bs, positions, K), torch.float32)
    scores = unary.new_empty(bs, positions, K, K)
    device.launch(
        f"dflash2_pair_scores_{_suffix(gates)}",
        bs * positions,
        _WORK_GROUP,
        gates.contiguous(),
        anchors.contiguous(),
        candidates.contiguous(),
        unary.contiguous(),
        predecessor_codebook.contiguous(),
        successor_codebook.contiguous(),
        None if temperatures is None else temperatures.contiguous(),
        positions,
        K,
        rank,
        scores,
    )
    return scores


def convolve_block(
    device: Device, x: Tensor, kernel: Tensor, delta: Tensor | None, bias: Tensor | None
) -> Tensor:
    blocks, length, channels = x.shape
    taps = kernel.shape[0]
    _expect("kernel", kernel, (taps, channels), x.dtype)
    group_size, delta_strides = channels, (0, 0, 0)
    if delta is not None:
        groups = delta.shape[-1]
        _expect("delta", delta, (blocks, length, taps, groups), x.dtype)
        delta = delta if delta.stride(3) == 1 else delta.contiguous()
        group_size = channels // groups
        delta_strides = (delta.stride(0), delta.stride(1), delta.stride(2))
    rows = x if x.stride(2) == 1 else x.contiguous()
    out = x.new_empty(blocks, length, channels)
    device.launch(
        f"dflash2_convolve_block_{_suffix(x)}",
        blocks * length,
        _WORK_GROUP,
        rows,
        kernel.contiguous(),
        delta,
        None if bias is None else bias.contiguous(),
        rows.stride(0),
        rows.stride(1),
        *delta_strides,
        length,
        channels,
        taps,
        group_size,
        out,
    )
    return out


def move_kv(
    device: Device, data_ptrs: Tensor, strides: Tensor, targets: Tensor, sources: Tensor
) -> None:
    buffers, count = data_ptrs.numel(), targets.numel()
    _expect("strides", strides, (buffers,), torch.int64)
    _expect("sources", sources, (count,), targets.dtype)
    if count == 0:
        return
    groups = buffers * _MOVE_SPLITS
    scratch = targets.new_empty(groups * count * 16, dtype=torch.uint8)
    inputs = (data_ptrs, strides, targets.contiguous(), sources.contiguous())
    device.launch("dflash2_move_kv", groups, _WORK_GROUP, *inputs, count, _MOVE_SPLITS, scratch)


OPERATORS: dict[str, Callable] = {
    function.__name__: function
    for function in (
        ancestor_bits,
        build_tree,
        commit_path,
        convolve_block,
        draw_tokens,
        greedy_tokens,
        move_kv,
        noisy_candidates,
        pair_scores,
        tree_layout,
        walk_tree,
    )
}


def _laws(
    bs: int, top_ks: Tensor | None, top_ps: Tensor | None, min_ps: Tensor | None
) -> tuple[Tensor | None, ...]:
    """What restricts a draw, checked and contiguous."""
    laws = {"top_ks": top_ks, "top_ps": top_ps, "min_ps": min_ps}
    for name, law in laws.items():
        if law is not None:
            _expect(name, law, (bs,), torch.int64 if name == "top_ks" else torch.float32)
    return tuple(None if law is None else law.contiguous() for law in laws.values())


def _suffix(tensor: Tensor) -> str:
    if tensor.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(f"expected float32, bfloat16 or float16, got {tensor.dtype}")
    return str(tensor.dtype).removeprefix("torch.")


def _expect(name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if tuple(tensor.shape) != shape or tensor.dtype != dtype:
        raise ValueError(
            f"expected {name} {list(shape)} {dtype}, got {list(tensor.shape)} {tensor.dtype}"
        )
