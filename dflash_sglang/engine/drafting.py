"""Drafting: one pass of the drafter over every request's block, and the lattice behind it."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from sglang.srt.model_executor.forward_batch_info import (
    CaptureHiddenMode,
    ForwardBatch,
    ForwardMode,
)
from sglang.srt.speculative.dflash_info import DFlashVerifyInput

from dflash_sglang.adaptive.doubt import DoubtLedger
from dflash_sglang.engine.draft_head import DraftHead
from dflash_sglang.engine.noise import StepNoise
from dflash_sglang.engine.window import StepWindow
from dflash_sglang.kernels.top_columns import top_columns
from dflash_sglang.options import DFlash2Options
from dflash_sglang.tree.lattice import Lattice, build_lattice
from dflash_sglang.tree.noisy import (
    NoisyEdges,
    build_noisy_lattice,
    doubt_evidence,
    noisy_candidates,
    noisy_edges,
)
from dflash_sglang.verify.walk import Verdict

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo


class Block(NamedTuple):
    """A drafted block: what the drafter knows about each position behind the anchor."""

    hidden: torch.Tensor  # [bs, g, D] final hidden state of each drafted position
    unary_logits: torch.Tensor  # [bs, g, R] float32, of the draft vocabulary


class Choices(NamedTuple):
    """What a step may propose."""

    lattice: Lattice
    edges: NoisyEdges | None  # behind the lattice, where the target's noise was used


class BlockDrafter:
    """Runs the drafter on SGLang's draft runner, against KV under the target's own slots.

    Args:
        runner: SGLang's runner of the draft model.
        head: of the target, as drafting uses it.
        options: the resolved speculation window.
    """

    def __init__(self, runner: ModelRunner, head: DraftHead, options: DFlash2Options) -> None:
        self._runner = runner
        self._model = runner.model
        self._drafter = runner.model.drafter
        self._head = head
        self._options = options

    @cached_property
    def _doubts(self) -> DoubtLedger:
        # The request table is made after the worker. Prefill and decoding both write the ledger.
        table = self._runner.req_to_token_pool.req_to_token
        with torch.inference_mode(False):
            return DoubtLedger(table.shape[0], table.device)

    def draft(self, batch: ScheduleBatch, window: StepWindow) -> Block:
        """One parallel pass over [anchor, MASK x (B - 1)] of every request."""
        hidden = self._runner.forward(self._block_batch(batch, window)).logits_output.hidden_states
        bs = window.anchors.shape[0]
        block = hidden.view(bs, self._options.block_size, -1)  # [bs, B, D]
        drafted = block[:, self._drafter.config.draft_positions()]
        drafted = drafted[:, : self._options.max_depth]  # [bs, g, D]
        return Block(drafted, self._drafter.unary_logits(drafted, self._head.logits))

    def lattice(
        self,
        block: Block,
        anchors: torch.Tensor,
        sampling: SamplingBatchInfo,
        noise: StepNoise | None,
        rows: torch.Tensor,
    ) -> Choices:
        """The best candidates of each position and log q(candidate | predecessor).

        Args:
            anchors: [bs] int64.
            noise: what the target will draw with; the candidates then are those that win under it.
            rows: [bs] int64 rows of the requests in SGLang's request table.
        """
        weight = self._options.tuning.entropy_weight
        if noise is None or not self._options.tuning.shared_noise:
            unary, columns = top_columns(block.unary_logits, self._options.candidates)  # [bs, g, K]
            candidates = self._head.tokens(columns)
            scores = self._scores(block, anchors, candidates, unary)
            temperatures = None if sampling.is_all_greedy else sampling.temperatures.view(-1)
            return Choices(build_lattice(scores, candidates, temperatures, weight), None)
        ours = noisy_candidates(
            self._head.over_vocabulary(block.unary_logits),
            noise.keys,
            noise.temperatures,
            num_inside=self._options.candidates,
            num_others=self._options.candidates,
            truncation=noise.truncation,
            is_coupled=noise.is_coupled(),
            doubt=self._doubt(rows),
        )
        scores = self._scores(block, anchors, ours.tokens, ours.unary_logits)
        edges = noisy_edges(ours, scores)
        return Choices(build_noisy_lattice(edges, weight), edges)

    def forget(self, rows: torch.Tensor) -> None:
        """Requests that are new to these rows [bs] of SGLang's table start without history."""
        self._doubts.restart(rows)

    def learn(self, rows: torch.Tensor, edges: NoisyEdges | None, verdict: Verdict) -> None:
        """Let the requests' doubts learn from what a step delivered to their rows [bs]."""
        if edges is None or self._options.tuning.noise_doubt is not None:
            return
        evidence = doubt_evidence(edges, verdict.tokens, verdict.accept_lens, self._doubts.values)
        self._doubts.learn(rows, evidence)

    def _doubt(self, rows: torch.Tensor) -> torch.Tensor | float:
        fixed = self._options.tuning.noise_doubt
        return self._doubts.doubts(rows) if fixed is None else fixed

    def _scores(
        self,
        block: Block,
        anchors: torch.Tensor,
        candidates: torch.Tensor,
        unary: torch.Tensor,
    ) -> torch.Tensor:
        """Pair scores [bs, g, K, K], or the unary ones of a drafter without selector."""
        selector = self._drafter.selector
        if selector is None:
            return unary
        return selector.pair_scores(block.hidden, anchors, candidates, unary)

    def inject(self, features: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor) -> None:
        """Inject the target's hidden states as keys and values of every draft layer.

        Args:
            features: [T, n * D] tapped hidden states, one row a committed token.
            slots: [T] the KV slots of those tokens; slot 0 is SGLang's bin for unwanted rows.
            positions: [T] their absolute positions.
        """
        context = self._drafter.project_features(features)
        keys, values = self._drafter.context_keys_values(context, positions)  # [L, T, Hkv, d]
        location = KVWriteLoc(slots, physical=True)
        for layer, key, value in zip(self._model.attention, keys, values, strict=True):
            self._runner.token_to_kv_pool.set_kv_buffer(layer, location, key, value)

    def _block_batch(self, batch: ScheduleBatch, window: StepWindow) -> ForwardBatch:
        width = self._options.block_size
        tokens = self._drafter.block_tokens(window.anchors)  # [bs, B]
        offsets = torch.arange(width, device=tokens.device)
        positions = (window.prefix_lens[:, None] + offsets).reshape(-1)
        host_lens = None if batch.seq_lens_cpu is None else batch.seq_lens_cpu + width
        forward_batch = ForwardBatch(
            # To SGLang a block behind a cached prefix is a verify forward, whatever it is for.
            forward_mode=ForwardMode.TARGET_VERIFY,
            batch_size=tokens.shape[0],
            input_ids=tokens.reshape(-1),
            req_pool_indices=batch.req_pool_indices,
            seq_lens=window.prefix_lens,
            out_cache_loc=None,  # bound below
            seq_lens_sum=None if host_lens is None else int(host_lens.sum()),
            seq_lens_cpu=host_lens,
            positions=positions,
            spec_algorithm=batch.spec_algorithm,
            spec_info=DFlashVerifyInput(
                draft_token=tokens.reshape(-1),
                positions=positions,
                draft_token_num=width,
                capture_hidden_mode=CaptureHiddenMode.NULL,
            ),
            capture_hidden_mode=CaptureHiddenMode.NULL,
            can_run_decode_cuda_graph=batch.can_run_decode_cuda_graph,
        )
        window.plan.bind(
            forward_batch, self._runner.kv_index_translator, cols=window.columns(width)
        )
        return forward_batch
