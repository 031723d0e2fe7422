"""One decode step of dflash2: draft, lattice, tree, verify, walk, commit."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.layers.dp_attention import get_dp_tp_group
from sglang.srt.managers.scheduler import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.runtime_context import get_observability, get_parallel
from sglang.srt.speculative.base_spec_worker import BaseSpecWorker
from sglang.srt.speculative.draft_worker_common import build_draft_tp_worker
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.spec_tp_sync import SpecTpSync, SpecTpSyncSite
from sglang.srt.speculative.spec_utils import draft_pp_context, draft_tp_context

from dflash_sglang.adaptive.costs import Measured
from dflash_sglang.algorithm import draft_vocabulary_of, drafter_of, options_of
from dflash_sglang.engine import draft_model
from dflash_sglang.engine.adjusting import LogitAdjuster
from dflash_sglang.engine.context import DrafterContext, Features
from dflash_sglang.engine.draft_head import DraftHead
from dflash_sglang.engine.drafting import BlockDrafter
from dflash_sglang.engine.first_rank import first_ranks
from dflash_sglang.engine.first_tokens import draw_as_alone
from dflash_sglang.engine.limits import LimitTable
from dflash_sglang.engine.noise import StepNoise, step_noise
from dflash_sglang.engine.placement import replicated_drafter
from dflash_sglang.engine.rehearsal import (
    Stage,
    rehearsal_file,
    rehearse,
    rehearsed_steps,
    remembered,
)
from dflash_sglang.engine.state import DraftState, carry
from dflash_sglang.engine.step_clock import StepClock, StepMetrics
from dflash_sglang.engine.targets import check_target
from dflash_sglang.engine.verifying import TargetVerdict, TreeVerifier
from dflash_sglang.engine.vocabulary import TargetVocabulary
from dflash_sglang.engine.width_metrics import WidthMetrics
from dflash_sglang.engine.widths import AdaptiveWidth, FixedWidth
from dflash_sglang.engine.window import StepWindow, open_window
from dflash_sglang.kernels.walk import CommitMoves, commit_path
from dflash_sglang.tree.build import DraftTree, bare_root, build_tree
from dflash_sglang.tree.layout import make_layout
from dflash_sglang.tree.noisy import NoisyEdges
from dflash_sglang.verify.walk import walk

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.managers.tp_worker import TpModelWorker
    from sglang.srt.server_args import ServerArgs

logger = logging.getLogger(__name__)

Publish = Callable[[torch.Tensor], None]


class DFlash2Worker(BaseSpecWorker):
    """SGLang's speculative worker for dflash2; the arguments are SGLang's."""

    def __init__(
        self, server_args: ServerArgs, gpu_id: int, nccl_port: int, target_worker: TpModelWorker
    ) -> None:
        super().__init__()
        self._target_worker = target_worker
        self._runner = target_worker.model_runner
        self._options = options_of(server_args)
        self._algorithm = SpeculativeAlgorithm.from_string(server_args.speculative_algorithm)
        self._rehearsals = rehearsal_file(server_args, self._options)
        self._tp_sync = SpecTpSync(get_dp_tp_group())
        self.draft_parallel_layout = replicated_drafter()

        drafter = drafter_of(server_args)
        check_target(drafter, self._runner.model_config)
        vocabulary = TargetVocabulary(self._runner.model, self._runner.model_config.vocab_size)
        draft_model.install(drafter, vocabulary)
        with draft_pp_context(), draft_tp_context(self.draft_parallel_layout):
            self._draft_worker = build_draft_tp_worker(
                server_args=server_args,
                gpu_id=gpu_id,
                nccl_port=nccl_port,
                target_model_config=self._runner.model_config,
                algo_label="dflash2",
            ).draft_worker
        self._draft_runner = self._draft_worker.model_runner
        head = DraftHead(vocabulary, draft_vocabulary_of(server_args))
        self._drafter = BlockDrafter(self._draft_runner, head, self._options)
        self._context = DrafterContext(self._drafter, self.draft_parallel_layout)
        self._adjuster = LogitAdjuster(
            self._runner.model_config.vocab_size, self._options.max_depth, self._runner.device
        )
        self._verifier = TreeVerifier(target_worker, self._options, self._adjuster)
        if get_parallel().tp_rank == 0:
            logger.info("dflash2: %s", self._options.describe())

    @cached_property
    def _limits(self) -> LimitTable:
        # The request table is made after the worker.
        rows = self._runner.req_to_token_pool.req_to_token.shape[0]
        options = self._options
        with torch.inference_mode(False):
            return LimitTable(rows, options.num_nodes, options.max_depth, self._runner.device)

    @cached_property
    def _widths(self) -> FixedWidth | AdaptiveWidth:
        if not self._options.is_adaptive:
            return FixedWidth(self._options.num_nodes, self._limits)
        return AdaptiveWidth(
            self._options,
            self._runner.req_to_token_pool.req_to_token.shape[0],
            self._limits,
            get_dp_tp_group(),
            self._rehearse() if self._options.tuning.rehearse else [],
            WidthMetrics() if get_observability().enable_metrics else None,
        )

    @cached_property
    def _clock(self) -> StepClock:
        return StepClock(
            self._runner.device, StepMetrics() if get_observability().enable_metrics else None
        )

    @torch.inference_mode()
    def _rehearse(self) -> list[Measured]:
        stage = Stage(self._runner, self._drafter, self._algorithm, self._options.slots_per_step)
        rows, tokens = self._runner.req_to_token_pool.req_to_token.shape
        longest = tokens - self._options.slots_per_step
        steps = rehearsed_steps(rows, self._options.num_nodes, longest)
        with draft_tp_context(self.draft_parallel_layout):
            return remembered(
                self._rehearsals,
                steps,
                play=lambda: rehearse(stage, steps),
                agree=lambda fits: bool(first_ranks((int(fits),), get_dp_tp_group())[0]),
            )

    # What the scheduler asks of a speculative worker ------------------------------------------

    @property
    def draft_worker(self) -> TpModelWorker:
        return self._draft_worker

    @property
    def spec_v2_attn_backends(self) -> tuple[Any, ...]:
        return (self._runner.attn_backend, self._draft_runner.attn_backend)

    def weight_update_runners(self) -> list[tuple[str, Any]]:
        return [("draft", self._draft_runner)]

    def alloc_memory_pool(self, **pools: Any) -> None:
        """The drafter's KV lives under the target's slots: one allocator, one request table."""
        with draft_tp_context(self.draft_parallel_layout):
            super().alloc_memory_pool(**pools)

    def init_attention_backends(self) -> None:
        with draft_pp_context(), draft_tp_context(self.draft_parallel_layout):
            super().init_attention_backends()

    def init_cuda_graphs(self) -> None:
        with draft_pp_context(), draft_tp_context(self.draft_parallel_layout):
            super().init_cuda_graphs()
        _ = self._widths, self._clock  # everything that a rehearsal needs is there now

    def forward_batch_generation(
        self,
        batch: ScheduleBatch,
        on_publish: Publish | None = None,
        grammar_barrier: Callable[[], None] | None = None,
        pp_proxy_tensors: Any = None,
    ) -> GenerationBatchResult:
        """One step of a batch: its prompts through the target, or one speculative decode step."""
        publish = on_publish or (lambda _: None)
        if batch.forward_mode.is_extend() or batch.is_extend_in_batch:
            return self._prefill(batch, publish, grammar_barrier)
        if batch.forward_mode.is_idle():
            return self._idle(publish)
        return self._decode(batch, publish, grammar_barrier)

    # The steps --------------------------------------------------------------------------------

    def _prefill(
        self,
        batch: ScheduleBatch,
        publish: Publish,
        grammar_barrier: Callable[[], None] | None,
    ) -> GenerationBatchResult:
        """Prompt tokens through the target; its hidden states become the drafter's context."""
        self._adjuster.prepare_prefill(batch, grammar_barrier)
        result = self._target_worker.forward_batch_generation(
            batch, capture_hidden_mode=CaptureHiddenMode.FULL, return_kv_loc_plan=True
        )
        plan, result.kv_loc_plan = result.kv_loc_plan, None
        result.next_token_ids = draw_as_alone(batch, result.logits_output, result.next_token_ids)
        self._tp_sync.sync(SpecTpSyncSite.DFLASH_TARGET, result.next_token_ids)
        first_tokens = result.next_token_ids.to(torch.int64)[:, None]  # [bs, 1]
        self._adjuster.follow(batch, first_tokens, torch.ones_like(batch.seq_lens))
        result.new_seq_lens = batch.seq_lens
        publish(result.new_seq_lens)

        # At once, since the radix cache may hand these slots to another request after this step.
        slots = plan.write_ids(self._draft_runner.kv_index_translator)  # [T]
        hidden = result.logits_output.hidden_states[: slots.shape[0]]  # [T, n * D]
        self._context.append(Features(hidden, slots, extend_positions(batch)))
        result.logits_output.hidden_states = None  # the scheduler would copy it to the host
        self._drafter.forget(batch.req_pool_indices)
        running = set(batch.decoding_reqs or [])
        admitted = [request for request in batch.reqs if request not in running]
        self._limits.admit(admitted)
        self._widths.admit(admitted)
        result.next_draft_input = carry(result.next_token_ids, result.new_seq_lens)
        return result

    @torch.inference_mode()
    def _decode(
        self,
        batch: ScheduleBatch,
        publish: Publish,
        grammar_barrier: Callable[[], None] | None,
    ) -> GenerationBatchResult:
        self._clock.start()
        window = open_window(batch, self._runner, self._options.slots_per_step)
        nodes = self._widths.nodes(batch)
        if nodes == 1:
            return self._decode_plainly(batch, window, publish, grammar_barrier)
        noise = self._noise(batch, window, self._options.max_depth)
        edges, tree = self._propose(batch, window, noise, nodes)

        self._clock.lap()
        target = self._verify(batch, window, tree, noise, grammar_barrier)
        self._clock.lap()
        nodes = tree.tokens.shape[1]
        depth = min(self._options.max_depth, nodes - 1)
        allowed = self._limits.bound(batch.reqs, batch.req_pool_indices, tree)
        verdict = walk(allowed, target.tokens, depth)
        self._widths.learn(verdict)
        self._adjuster.follow(batch, verdict.tokens, verdict.accept_lens)
        if batch.return_logprob:
            self._verifier.write_logprobs(batch, target.output, verdict.node_path, verdict.tokens)

        self._drafter.learn(batch.req_pool_indices, edges, verdict)
        moves = commit_path(verdict.node_path, window.slots, window.prefix_lens, nodes)
        publish(moves.new_lens)
        self._commit(moves, target.output.hidden_states)
        target.output.hidden_states = None
        self._clock.finish(nodes, len(batch.reqs))
        return GenerationBatchResult(
            logits_output=target.output,
            next_token_ids=verdict.tokens.reshape(-1),
            accept_lens=verdict.accept_lens.to(torch.int32),
            can_run_cuda_graph=target.can_run_cuda_graph,
            next_draft_input=carry(verdict.bonus, moves.new_lens),
            speculative_num_draft_tokens=nodes,
            speculative_output_stride=depth + 1,
            new_seq_lens=moves.new_lens,
        )

    def _decode_plainly(
        self,
        batch: ScheduleBatch,
        window: StepWindow,
        publish: Publish,
        grammar_barrier: Callable[[], None] | None,
    ) -> GenerationBatchResult:
        """Forwards of one token a request; the drafter gets their hidden states later."""
        self._clock.lap()
        delivered: list[torch.Tensor] = []
        one_each = torch.ones_like(window.prefix_lens)
        while not delivered or self._widths.goes_on(batch, window.anchors):
            tree = bare_root(window.anchors)
            noise = self._noise(batch, window, depth=0)
            target = self._verify(batch, window, tree, noise, grammar_barrier)
            self._adjuster.follow(batch, target.tokens, one_each)
            hidden, target.output.hidden_states = target.output.hidden_states, None
            features = Features(hidden, window.slots[:, 0], window.prefix_lens)
            self._context.append_later(batch, features)
            delivered.append(target.tokens)
            window = window.behind(target.tokens[:, 0])
        self._clock.lap()
        publish(window.prefix_lens)
        count = len(delivered)
        if batch.return_logprob:  # of bursts of one token, since it bounds them
            roots = torch.zeros_like(target.tokens)
            self._verifier.write_logprobs(batch, target.output, roots, target.tokens)
        self._clock.finish(1, len(batch.reqs), count)
        return GenerationBatchResult(
            logits_output=target.output,
            next_token_ids=torch.cat(delivered, dim=1).reshape(-1),
            accept_lens=torch.full_like(one_each, count, dtype=torch.int32),
            can_run_cuda_graph=target.can_run_cuda_graph,
            next_draft_input=carry(window.anchors, window.prefix_lens),
            speculative_num_draft_tokens=1,
            speculative_output_stride=count,
            num_non_draft_tokens_per_req=count,
            new_seq_lens=window.prefix_lens,
        )

    def _propose(
        self, batch: ScheduleBatch, window: StepWindow, noise: StepNoise | None, nodes: int
    ) -> tuple[NoisyEdges | None, DraftTree]:
        """Draft a tree of so many nodes, and cut it to the step's width."""
        self._context.catch_up()
        with draft_tp_context(self.draft_parallel_layout):
            block = self._drafter.draft(batch, window)
        choices = self._drafter.lattice(
            block, window.anchors, batch.sampling_info, noise, batch.req_pool_indices
        )
        tree = build_tree(
            choices.lattice,
            window.anchors,
            nodes,
            self._options.max_depth,
            self._options.max_children,
        )
        # One tree for all ranks, even where rounding made theirs differ.
        for part in (tree.tokens, tree.parents, tree.depths):
            self._tp_sync.sync(SpecTpSyncSite.DFLASH_SELECTOR, part)
        return choices.edges, self._widths.cut(tree)

    def _verify(
        self,
        batch: ScheduleBatch,
        window: StepWindow,
        tree: DraftTree,
        noise: StepNoise | None,
        grammar_barrier: Callable[[], None] | None,
    ) -> TargetVerdict:
        """The target's own token behind every node, the same on all ranks."""
        layout = make_layout(tree, window.prefix_lens)
        target = self._verifier.verify(batch, window, tree, layout, noise, grammar_barrier)
        self._tp_sync.sync(SpecTpSyncSite.DFLASH_ACCEPT_SAMPLE, target.tokens)
        return target

    def _commit(self, moves: CommitMoves, hidden: torch.Tensor) -> None:
        """Give the accepted path consecutive slots, and the drafter the path's hidden states.

        Args:
            hidden: [bs * N, n * D] hidden states of every node, the target's.
        """
        if not self._options.is_chain:
            self._runner.token_to_kv_pool.move_kv_cache(moves.targets, moves.sources)
        self._context.append(Features(hidden[moves.rows], moves.context_slots, moves.positions))

    def _noise(self, batch: ScheduleBatch, window: StepWindow, depth: int) -> StepNoise | None:
        return step_noise(batch, window.prefix_lens, depth, self._target_worker.random_seed)

    def _idle(self, publish: Publish) -> GenerationBatchResult:
        """A batch without requests, as a rank sees it while others work."""
        nothing = torch.empty((0,), dtype=torch.int64, device=self._runner.device)
        publish(nothing)
        return GenerationBatchResult(
            next_token_ids=nothing,
            accept_lens=nothing.to(torch.int32),
            next_draft_input=DraftState.create_idle_input(device=self._runner.device),
            speculative_num_draft_tokens=self._options.num_nodes,
            speculative_output_stride=self._options.max_depth + 1,
            new_seq_lens=nothing,
        )


def extend_positions(batch: ScheduleBatch) -> torch.Tensor:
    """Absolute positions of an extend batch's tokens, [T] int64, request after request."""
    spans = zip(batch.prefix_lens, batch.extend_lens, strict=True)
    spread = [torch.arange(prefix, prefix + length) for prefix, length in spans]
    return torch.cat(spread).to(batch.seq_lens.device, non_blocking=True)
