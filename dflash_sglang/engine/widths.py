"""How many nodes each decode step verifies: always the same, or what pays at the moment."""

from __future__ import annotations

import logging
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dflash_sglang.adaptive.acceptance import AcceptModel, Chances, DraftedNodes, Floats, Kinds
from dflash_sglang.adaptive.costs import CostModel, Measured, Step
from dflash_sglang.adaptive.domain import classify, origin
from dflash_sglang.adaptive.policy import Outlook, Width, WidthPolicy
from dflash_sglang.adaptive.telemetry import WidthLog
from dflash_sglang.adaptive.thrift import Thrift
from dflash_sglang.engine.bursts import BurstBounds
from dflash_sglang.engine.first_rank import first_ranks
from dflash_sglang.engine.limits import LimitTable
from dflash_sglang.engine.width_metrics import WidthMetrics
from dflash_sglang.options import DFlash2Options
from dflash_sglang.tree.build import DraftTree, first_nodes
from dflash_sglang.verify.walk import Verdict

if TYPE_CHECKING:
    import torch
    from sglang.srt.distributed.parallel_state import GroupCoordinator
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch

logger = logging.getLogger(__name__)

_WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_LOGGED_STEPS = 512
_PUBLISHED_STEPS = 4
_PROMPT_TOKENS = 150  # of its end, which tell a prompt's domain


class FixedWidth:
    """Every step verifies the nodes that the server was started with."""

    def __init__(self, nodes: int, limits: LimitTable) -> None:
        self._nodes = nodes
        self._limits = limits

    def admit(self, requests: list[Req]) -> None:
        """Requests whose prompts are read now."""

    def nodes(self, batch: ScheduleBatch) -> int:
        """Nodes of the tree to draft, root included; 1: the step decodes plainly."""
        return self._nodes if self._limits.may_speculate(batch.reqs) else 1

    def cut(self, tree: DraftTree) -> DraftTree:
        """The part of the drafted tree that is verified."""
        return tree

    def goes_on(self, batch: ScheduleBatch, tokens: torch.Tensor) -> bool:
        """Whether a plain step, which brought these tokens [bs] int64, is followed by another."""
        return False

    def learn(self, verdict: Verdict) -> None:
        """Take in what the step delivered."""


class _Plan(NamedTuple):
    """What a step was chosen for, kept until it is known what came of it."""

    started: float  # seconds
    rows: list[int]  # of the requests
    step: Step
    kinds: Kinds
    outlook: Outlook
    curve: Floats  # [W] tokens that each width was expected to bring
    width: Width
    nodes: DraftedNodes | None = None
    chances: Chances | None = None
    tokens: int = 0  # that forwards with a draft delivered
    forwards: int = 1  # of the target, the present one included
    steps: int = 1  # forwards that it is for
    burst_end: int = 1  # the last of them without the scheduler in between
    latest: float = 0.0  # when the present step started, in seconds
    tokens_before: int = 0  # it


class AdaptiveWidth:
    """Every step verifies what pays.

    It reads trees on the host, so it is for devices that share the host's memory.

    Args:
        options: the resolved speculation window; its nodes are the ceiling.
        rows: requests that the server can hold at once.
        limits: what requests ask of their own speculation.
        group: the ranks that must verify the same nodes.
        rehearsed: times of steps; none where they were not rehearsed.
        metrics: where the policy's figures are published, if anywhere.
    """

    def __init__(
        self,
        options: DFlash2Options,
        rows: int,
        limits: LimitTable,
        group: GroupCoordinator,
        rehearsed: list[Measured],
        metrics: WidthMetrics | None,
    ) -> None:
        self._widths = (*(w for w in _WIDTHS if w < options.num_nodes), options.num_nodes)
        self._model = AcceptModel(rows, self._widths, options.max_depth)
        known = [row for row in rehearsed if row.step.nodes in self._widths]
        self._costs = (
            CostModel.fit(self._widths, known) if known else CostModel.assumed(self._widths)
        )
        self._policy = WidthPolicy(self._widths, self._costs)
        self._bursts, self._thrift = BurstBounds(), Thrift()
        self._room = options.slots_per_step  # tokens
        self._limits = limits
        self._group = group
        self._metrics = metrics
        self._log, self._recent = WidthLog(self._widths), WidthLog(self._widths)
        self._plan: _Plan | None = None
        self._rids: dict[int, str] = {}  # of the request in each row

    def admit(self, requests: list[Req]) -> None:
        """Requests whose prompts are read now start from what others of their kind showed."""
        self._interrupt()
        new = [r for r in requests if self._rids.get(r.kv.req_pool_idx) != r.rid]
        if not new:
            return  # further chunks of prompts that were admitted before
        origins = []
        for request in new:
            domain = classify(_prompt_end(request), has_grammar=request.grammar is not None)
            logger.info("dflash2: %s starts as %s (%s)", request.rid, domain.name, domain.reason)
            origins.append(origin(domain, len(request.origin_input_ids)))
            self._rids[request.kv.req_pool_idx] = request.rid
        rows = np.array([request.kv.req_pool_idx for request in new], dtype=np.int64)
        self._model.restart(rows, np.array(origins, dtype=np.int64))

    def _interrupt(self) -> None:
        """A prefill comes between: the time to the next decode step is not that of the last one."""
        plan, self._plan = self._plan, None
        self._bursts.after_prefill()
        if plan is None:
            return
        if plan.step.nodes > 1 and plan.forwards > 1:
            before = plan._replace(forwards=plan.forwards - 1, tokens=plan.tokens_before)
            self._settle(before, plan.latest)
        else:
            self._thrift.settle()

    def nodes(self, batch: ScheduleBatch) -> int:
        """Nodes of the tree to draft, root included; 1: the step decodes plainly."""
        now, plan = perf_counter(), self._plan
        rows = [request.kv.req_pool_idx for request in batch.reqs]
        if plan is not None and plan.rows == rows and plan.forwards < plan.steps:
            self._plan = plan._replace(
                forwards=plan.forwards + 1, latest=now, tokens_before=plan.tokens
            )
            if plan.step.nodes == 1:
                self._begin_burst(batch)
            return plan.step.nodes
        if plan is not None:
            self._settle(plan, now)
        kinds, context = _kinds(batch, rows), int(batch.seq_lens_cpu.sum())
        bs = len(rows)
        remembered = self._limits.tokens(kinds.rows, self._model.remembered(kinds))  # [bs, W]
        outlook = self._policy.look_ahead(remembered, context)
        may_draft = self._limits.may_speculate(batch.reqs)
        steps = self._agree(outlook.rest if may_draft else outlook.longest)
        plain = Width(1, float(bs), float(outlook.times[0]))
        self._plan = _Plan(
            now, rows, Step(bs, 1, context), kinds, outlook, remembered.sum(axis=0), plain
        )
        nodes = 1
        if steps == 0:
            nodes = self._agree(outlook.ceiling)
        else:
            self._plan = self._plan._replace(steps=steps)
            self._begin_burst(batch)
            self._model.grow_older(kinds.rows, steps)
        self._spend_since(now)
        return nodes

    def _begin_burst(self, batch: ScheduleBatch) -> None:
        """Plain forwards begin: as many in a row as the plan still has and the batch allows."""
        plan = self._plan
        assert plan is not None
        longest = min(self._bursts.longest(batch), self._room)
        end = min(plan.steps, plan.forwards - 1 + longest)
        self._plan = plan._replace(burst_end=end)

    def goes_on(self, batch: ScheduleBatch, tokens: torch.Tensor) -> bool:
        """Whether a plain step, which brought these tokens [bs] int64, is followed by another."""
        plan = self._plan
        assert plan is not None, "nodes() comes before goes_on()"
        if self._bursts.ends(batch, tokens) or plan.forwards >= plan.burst_end:
            return False
        self._plan = plan._replace(forwards=plan.forwards + 1)
        return True

    def cut(self, tree: DraftTree) -> DraftTree:
        """The part of the drafted tree that is verified."""
        plan = self._plan
        assert plan is not None, "nodes() comes before cut()"
        if plan.nodes is not None:
            return tree  # of a width that is kept
        now = perf_counter()
        nodes = DraftedNodes(tree.depths.numpy(), tree.log_values.exp().double().numpy())
        chances = self._model.chances(plan.kinds, nodes)
        own = self._limits.chances(plan.kinds.rows, nodes.depths, chances.own)
        chances = chances._replace(own=own)
        width = self._policy.choose(own, plan.outlook)
        width = width._replace(nodes=self._agree(width.nodes))
        steps = self._steps(width)
        self._model.grow_older(plan.kinds.rows, steps)
        self._plan = plan._replace(
            step=plan.step._replace(nodes=width.nodes),
            width=width,
            nodes=nodes,
            chances=chances,
            steps=steps,
        )
        self._spend_since(now)
        return first_nodes(tree, width.nodes)

    def learn(self, verdict: Verdict) -> None:
        """Take in what the step delivered."""
        plan = self._plan
        if plan is None or plan.nodes is None or plan.chances is None:
            return
        now = perf_counter()
        if plan.forwards == 1:
            path = verdict.node_path.numpy()  # [bs, D + 1]
            requests, depths = np.nonzero(path >= 0)
            accepted = np.zeros((path.shape[0], plan.step.nodes), dtype=bool)
            accepted[requests, path[requests, depths]] = True
            self._model.learn(plan.kinds, plan.nodes, accepted, plan.chances)
        self._plan = plan._replace(tokens=plan.tokens + int(verdict.accept_lens.sum()))
        self._spend_since(now)

    def _steps(self, width: Width) -> int:
        """Steps that a choice of this width is kept for."""
        return self._agree(self._thrift.steps(width.milliseconds))

    def _spend_since(self, moment: float) -> None:
        self._thrift.spend(1e3 * (perf_counter() - moment))

    def _settle(self, plan: _Plan, ended: float) -> None:
        """Take in what a plan's steps took."""
        took = 1e3 * (ended - plan.started) / plan.forwards
        self._costs.correct(Measured(plan.step, took))
        tokens = plan.tokens or plan.step.requests * plan.forwards
        times, choosing = plan.outlook.times, self._thrift.settle()
        self._recent.add(plan.width, tokens, took, plan.curve, times, plan.forwards, choosing)
        if self._recent.count < _PUBLISHED_STEPS:
            return
        if self._metrics is not None:
            self._metrics.add(self._recent)
        self._log.take_in(self._recent)
        self._recent = WidthLog(self._widths)
        if self._log.count >= _LOGGED_STEPS:
            logger.info("dflash2: %s", self._log.describe())
            self._log = WidthLog(self._widths)

    def _agree(self, choice: int) -> int:
        """Times differ between ranks, widths must not."""
        return first_ranks(choice, self._group)


def _kinds(batch: ScheduleBatch, rows: list[int]) -> Kinds:
    sampled = [request.sampling_params.top_k != 1 for request in batch.reqs]
    return Kinds(np.array(rows, dtype=np.int64), np.array(sampled, dtype=np.int64))


def _prompt_end(request: Req) -> str:
    """The last words of a prompt; nothing where the server has no tokenizer."""
    if request.tokenizer is None:
        return ""
    return request.tokenizer.decode(request.origin_input_ids[-_PROMPT_TOKENS:])
