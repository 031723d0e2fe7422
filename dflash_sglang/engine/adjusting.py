"""The logits behind every draft node, adjusted as plain decoding adjusts them at that point.

SGLang's order is kept: penalties and minimum length, grammar, logit bias, custom processors. What
depends on the text so far follows the node's own path.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from dflash_sglang.engine.penalties import PenaltyLedger, minimum_lengths
from dflash_sglang.engine.processors import Delivered, OutputsOnHost, process_nodes, show_outputs
from dflash_sglang.tree.build import DraftTree
from dflash_sglang.tree.layout import TreeLayout
from dflash_sglang.verify.penalties import forbid_tokens, penalize_nodes

if TYPE_CHECKING:
    from sglang.srt.constrained.base_grammar_backend import GrammarMask
    from sglang.srt.managers.schedule_batch import ScheduleBatch


class LogitAdjuster:
    """Adjusts the logits of trees and prefills, and follows what every step delivers.

    Args:
        vocab_size: V.
        max_depth: greatest depth of a tree.
        device: where steps are computed.
    """

    def __init__(self, vocab_size: int, max_depth: int, device: torch.device | str) -> None:
        self._max_depth = max_depth
        self._device = device
        self._ledger = PenaltyLedger(vocab_size, device)
        self._last: Delivered | None = None

    @torch.inference_mode()
    def prepare_prefill(
        self, batch: ScheduleBatch, grammar_barrier: Callable[[], None] | None
    ) -> None:
        """Show SGLang's sampler, which draws the tokens behind prompts, the state of each request.

        It is more than SGLang's own where a retracted request's output is read again, and where
        running requests share the batch with prompts.
        """
        running = batch.decoding_reqs or []
        self._ledger.restart(set(batch.reqs) - set(running))
        info = batch.sampling_info
        if running and batch.has_grammar and grammar_barrier is not None:
            grammar_barrier()
        if running and info.has_custom_logit_processor:
            show_outputs(info, OutputsOnHost(batch.reqs, batch.seq_lens, self._last))
        if info.acc_additive_penalties is not None:
            self._replace_penalties(batch)

    @torch.inference_mode()
    def adjust_nodes(
        self,
        batch: ScheduleBatch,
        logits: torch.Tensor,
        tree: DraftTree,
        layout: TreeLayout,
        grammar_mask: GrammarMask | None,
    ) -> None:
        """Adjust the target's logits in place.

        Args:
            logits: [bs * N, V] float32, request after request.
        """
        info = batch.sampling_info
        bs, nodes = tree.tokens.shape
        by_node = logits.view(bs, nodes, -1)

        penalties = self._ledger.state(batch.reqs)
        if penalties is not None:
            penalize_nodes(by_node, penalties, tree.tokens, layout.mask, self._max_depth)
        minimum = minimum_lengths(batch.reqs, self._device)
        if minimum is not None:
            lens = layout.positions + 1  # [bs, N], the node's own token included
            forbid_tokens(by_node, minimum.stop_tokens, minimum.forbids(lens))
        if grammar_mask is not None:
            grammar_mask.apply(logits)
        if info.logit_bias is not None:
            by_node.add_(info.logit_bias[:, None])
        if info.has_custom_logit_processor:
            anchored_lens = layout.positions[:, 0] + 1
            outputs = OutputsOnHost(batch.reqs, anchored_lens, self._last, tree)
            process_nodes(logits, info, outputs, nodes)

    @torch.inference_mode()
    def follow(self, batch: ScheduleBatch, tokens: torch.Tensor, lens: torch.Tensor) -> None:
        """Take in what a step delivered: tokens [bs, n] int64, of which row b's first lens[b]."""
        self._ledger.add(batch.reqs, tokens, lens)
        self._last = None
        if batch.sampling_info.has_custom_logit_processor:
            rows = {req.rid: row for row, req in enumerate(batch.reqs)}
            self._last = Delivered(rows, tokens, lens)

    def _replace_penalties(self, batch: ScheduleBatch) -> None:
        """Put ours in the place of the penalties that SGLang accumulated for a prefill."""
        info = batch.sampling_info
        penalties = self._ledger.state(batch.reqs)
        if penalties is None:
            additive = torch.zeros_like(info.acc_additive_penalties)  # [bs, V]
            info.acc_scaling_penalties = None
        else:
            additive = penalties.additive()
            info.acc_scaling_penalties = penalties.scaling()
        minimum = minimum_lengths(batch.reqs, self._device)
        if minimum is not None:
            forbidden = minimum.forbids(batch.seq_lens)
            forbid_tokens(additive[:, None], minimum.stop_tokens, forbidden[:, None])
        info.acc_additive_penalties = additive
