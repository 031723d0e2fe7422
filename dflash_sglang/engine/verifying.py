"""Verification: the target over every node of every tree at once, and its token at each node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.layers.logprob_processor import compute_spec_logprobs
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.speculative.dflash_info import DFlashVerifyInput

from dflash_sglang.engine.adjusting import LogitAdjuster
from dflash_sglang.engine.grammar import copy_trees, node_masks
from dflash_sglang.engine.node_rows import one_row_a_node
from dflash_sglang.engine.noise import StepNoise
from dflash_sglang.engine.window import StepWindow
from dflash_sglang.options import DFlash2Options
from dflash_sglang.tree.build import DraftTree
from dflash_sglang.tree.layout import TreeLayout
from dflash_sglang.tree.mask import flatten_mask
from dflash_sglang.verify.target import greedy_tokens, sampled_tokens

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.managers.tp_worker import TpModelWorker


@dataclass
class TreeVerifyInput(DFlashVerifyInput):
    """SGLang's verify input with the ancestors of each node beside it.

    Attributes:
        tree_mask: [bs, N, N] bool, True where the column's node is the row's ancestor or itself.
            The CPU's attention backend reads it; accelerators' read ``custom_mask``.
    """

    tree_mask: torch.Tensor | None = None


class TargetVerdict(NamedTuple):
    """What the target says about a batch of trees, row i of request b standing at b * N + i."""

    output: LogitsProcessorOutput  # adjusted logits [bs * N, V] and tapped hidden [bs * N, n * D]
    tokens: torch.Tensor  # [bs, N] int64, the target's own token behind each node
    can_run_cuda_graph: bool


class TreeVerifier:
    """Runs the target over draft trees.

    Args:
        worker: SGLang's worker of the target.
        options: the resolved speculation window.
        adjuster: what requests ask of their logits.
    """

    def __init__(
        self, worker: TpModelWorker, options: DFlash2Options, adjuster: LogitAdjuster
    ) -> None:
        self._worker = worker
        self._options = options
        self._adjuster = adjuster

    def verify(
        self,
        batch: ScheduleBatch,
        window: StepWindow,
        tree: DraftTree,
        layout: TreeLayout,
        noise: StepNoise | None,
        grammar_barrier: Callable[[], None] | None,
    ) -> TargetVerdict:
        """One forward over all nodes, then one token of the target's at each."""
        trees = copy_trees(batch, tree, layout)  # overlaps with the forward below
        verify_input = self._verify_input(batch, window, tree, layout)
        nodes = tree.tokens.shape[1]
        batch.out_cache_loc = window.slots[:, :nodes].reshape(-1)
        with _lengths_at(window, batch, nodes):
            forward_batch, _ = verify_input.prepare_for_verify(batch, self._worker)
        result = self._worker.forward_batch_generation(
            batch=None,
            forward_batch=forward_batch,
            is_verify=True,
            skip_attn_backend_init=True,
        )
        output = result.logits_output
        mask = None if trees is None else node_masks(batch, trees, grammar_barrier)
        self._adjuster.adjust_nodes(batch, output.next_token_logits, tree, layout, mask)
        tokens = self._target_tokens(batch, output.next_token_logits, tree, layout, noise)
        return TargetVerdict(output, tokens, result.can_run_cuda_graph)

    def write_logprobs(
        self,
        batch: ScheduleBatch,
        output: LogitsProcessorOutput,
        node_path: torch.Tensor,
        tokens: torch.Tensor,
    ) -> None:
        """Put the log-probabilities of the delivered tokens where SGLang looks for them.

        Args:
            output: of the forward over all nodes.
            node_path: [bs, L] int64, columns of the accepted nodes; -1 behind.
            tokens: [bs, L] int64, delivered behind each of them.
        """
        bs, delivered = node_path.shape
        nodes = output.next_token_logits.shape[0] // bs
        first_rows = torch.arange(bs, device=node_path.device)[:, None] * nodes
        rows = first_rows + node_path.clamp(min=0)
        path = replace(output, next_token_logits=output.next_token_logits[rows.reshape(-1)])
        compute_spec_logprobs(batch, path, tokens.reshape(-1), chain_stride=delivered)
        output.next_token_logprobs = path.next_token_logprobs
        output.next_token_top_logprobs_val = path.next_token_top_logprobs_val
        output.next_token_top_logprobs_idx = path.next_token_top_logprobs_idx
        output.next_token_token_ids_logprobs_val = path.next_token_token_ids_logprobs_val
        output.next_token_token_ids_logprobs_idx = path.next_token_token_ids_logprobs_idx

    def _verify_input(
        self, batch: ScheduleBatch, window: StepWindow, tree: DraftTree, layout: TreeLayout
    ) -> TreeVerifyInput:
        nodes = tree.tokens.shape[1]
        verify_input = TreeVerifyInput(
            draft_token=tree.tokens.reshape(-1),
            positions=layout.positions.reshape(-1),
            draft_token_num=nodes,
            topk=self._options.max_children,
            capture_hidden_mode=CaptureHiddenMode.FULL,
            kv_loc_plan=window.plan,
            kv_loc_cols=window.columns(nodes),
        )
        if self._options.is_chain or nodes == 1:
            return verify_input  # a chain's mask is the causal one that every backend has
        if tree.tokens.is_cpu:
            verify_input.tree_mask = layout.mask
        else:
            verify_input.custom_mask = flatten_mask(
                layout.mask, window.prefix_lens, int(batch.seq_lens_sum)
            )
        return verify_input

    def _target_tokens(
        self,
        batch: ScheduleBatch,
        logits: torch.Tensor,
        tree: DraftTree,
        layout: TreeLayout,
        noise: StepNoise | None,
    ) -> torch.Tensor:
        nodes = tree.tokens.shape[1]
        info = batch.sampling_info
        by_node = logits.view(-1, nodes, logits.shape[-1])  # [bs, N, V]
        if info.is_all_greedy:
            return greedy_tokens(by_node)
        if noise is not None:
            return sampled_tokens(
                by_node,
                noise.temperatures,
                noise.keys,
                tree.depths,
                noise.truncation,
                noise_by_rank=noise.by_rank,
            )
        # SGLang's sampler works in place, and log-probabilities want the logits afterwards.
        drawn = self._worker.model_runner.sampler(
            LogitsProcessorOutput(next_token_logits=logits.clone()),
            one_row_a_node(info, nodes),
            return_logprob=False,
            top_logprobs_nums=[],
            token_ids_logprobs=[],
            positions=layout.positions.reshape(-1),
        )
        return drawn.view(-1, nodes).to(torch.int64)


@contextmanager
def _lengths_at(window: StepWindow, batch: ScheduleBatch, nodes: int) -> Iterator[None]:
    """Show SGLang where the window begins, and the host the longest context that a forward reads:
    the prefix and its own nodes."""
    lengths, on_host, total = batch.seq_lens, batch.seq_lens_cpu, batch.seq_lens_sum
    batch.seq_lens = window.prefix_lens
    if on_host is not None:
        batch.seq_lens_cpu = on_host + (window.begin + nodes)
        batch.seq_lens_sum = int(batch.seq_lens_cpu.sum())
    try:
        yield
    finally:
        batch.seq_lens, batch.seq_lens_cpu, batch.seq_lens_sum = lengths, on_host, total
