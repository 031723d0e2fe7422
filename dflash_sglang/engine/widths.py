"""How many nodes each decode step verifies: always the same, or what pays at the moment."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
import torch

from dflash_sglang.adaptive.acceptance import (
    AcceptModel,
    Calibration,
    DraftedNodes,
    Floats,
    Kinds,
)
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
    from sglang.srt.distributed.parallel_state import GroupCoordinator
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch

logger = logging.getLogger(__name__)

_WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_LOGGED_STEPS = 512
_PUBLISHED_STEPS = 8
_PROMPT_TOKENS = 150  # of its end, which tell a prompt's domain
_IN_VAIN = 0.9  # of plain decoding's rate: a plan whose drafts promise less is given up
_LESSONS_A_STEP = 4  # after which plans may be a step longer


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


@dataclass(slots=True)
class _Leg:
    """One step of the scheduler."""

    started: float  # seconds
    width: Width
    forwards: int = 1  # of the target, several where they are plain
    tokens: int = 0  # that were delivered to all requests together
    milliseconds: float = 0.0  # of all forwards, once it is over


@dataclass(slots=True)
class _Plan:
    """What a look at a batch decided for its next steps, and what came of those behind it."""

    rows: list[int]  # of the requests
    context: int  # cached tokens, all of them together
    kinds: Kinds
    outlook: Outlook
    remembered: Floats  # [bs, W] tokens that each width was expected to bring
    nodes: int  # to draft; 1: the steps are plain
    leg: _Leg  # the present one
    legs: list[_Leg] = field(default_factory=list)  # those before it
    steps: int = 1  # forwards that it is for
    longest_leg: int = 1  # forwards of the present leg at most
    calibration: Calibration | None = None  # where it drafts
    curves: list[torch.Tensor] = field(default_factory=list)  # of each leg, [bs, W]
    lesson: DraftedNodes | None = None  # of the present leg, where it is learned from
    taught: bool = False  # whether any leg was or is

    @property
    def drafts(self) -> bool:
        return self.nodes > 1

    @property
    def left(self) -> int:
        """Forwards that are still to come."""
        return self.steps - self.leg.forwards - sum(leg.forwards for leg in self.legs)

    @property
    def pays(self) -> bool:
        """Whether its drafted steps promise about as much as plain decoding, or more."""
        widths = [leg.width for leg in (*self.legs, self.leg)]
        plain_rate = len(self.rows) / self.outlook.times[0]
        milliseconds = sum(width.milliseconds for width in widths)
        return sum(width.tokens for width in widths) >= _IN_VAIN * plain_rate * milliseconds

    def end_leg(self, now: float) -> None:
        """The present leg is over, and the next one begins."""
        leg = self.leg
        leg.milliseconds = 1e3 * (now - leg.started)
        if not self.drafts:
            leg.tokens = len(self.rows) * leg.forwards
        self.legs.append(leg)
        self.leg = _Leg(now, leg.width)


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
        self._lessons = 0  # one every so many drafted steps as plans are for
        self._unlearned = 0  # drafted steps since the last lesson
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
        rows = [request.kv.req_pool_idx for request in new]
        sampled = [request.sampling_params.top_k != 1 for request in new]
        columns = (np.array(column, dtype=np.int64) for column in (rows, origins, sampled))
        self._model.restart(*columns)

    def _interrupt(self) -> None:
        """A prefill comes between: the time to the next decode step is not that of the last one."""
        plan, self._plan = self._plan, None
        self._bursts.after_prefill()
        if plan is not None:
            self._settle(plan)

    def nodes(self, batch: ScheduleBatch) -> int:
        """Nodes of the tree to draft, root included; 1: the step decodes plainly."""
        now, plan = perf_counter(), self._plan
        rows = [request.kv.req_pool_idx for request in batch.reqs]
        if plan is not None:
            plan.end_leg(now)
        if plan is not None and plan.rows == rows and plan.left >= 0:
            self._thrift.choose(_milliseconds_since(now))
        else:
            if plan is not None:
                self._settle(plan)
            plan = self._plan = self._look_ahead(batch, rows, now)
            self._thrift.plan(_milliseconds_since(now))
        if not plan.drafts:
            plan.longest_leg = min(self._bursts.longest(batch), self._room, 1 + plan.left)
        return plan.nodes

    def _look_ahead(self, batch: ScheduleBatch, rows: list[int], now: float) -> _Plan:
        """Whether the batch's next steps draft, and how many do not."""
        kinds = self._model.meet(np.array(rows, dtype=np.int64))
        context = int(batch.seq_lens_cpu.sum())
        remembered = self._limits.tokens(kinds.rows, self._model.remembered(kinds))  # [bs, W]
        outlook = self._policy.look_ahead(remembered, context)
        may_draft = self._limits.may_speculate(batch.reqs)
        rest = outlook.rest if may_draft else outlook.longest
        steps, ceiling = self._agree(rest, outlook.ceiling)
        plain = Width(1, float(len(rows)), outlook.times[0])
        plan = _Plan(rows, context, kinds, outlook, remembered, nodes=1, leg=_Leg(now, plain))
        if steps == 0:
            plan.nodes = ceiling
            plan.calibration = self._model.calibration(kinds, self._limits.bounds(kinds.rows))
        else:
            plan.steps = steps
        return plan

    def goes_on(self, batch: ScheduleBatch, tokens: torch.Tensor) -> bool:
        """Whether a plain step, which brought these tokens [bs] int64, is followed by another."""
        plan = self._plan
        assert plan is not None, "nodes() comes before goes_on()"
        if self._bursts.ends(batch, tokens) or plan.leg.forwards >= plan.longest_leg:
            return False
        plan.leg.forwards += 1
        return True

    def cut(self, tree: DraftTree) -> DraftTree:
        """The part of the drafted tree that is verified."""
        now, plan = perf_counter(), self._plan
        assert plan is not None and plan.calibration is not None, "nodes() comes before cut()"
        curves = plan.calibration.curves(tree.log_values, tree.depths)
        width = self._policy.choose(curves.sum(dim=0).tolist(), plan.outlook)
        plan.leg.width = width
        nodes, plan.steps = self._agree(width.nodes, self._steps_of(plan))
        plan.leg.width = width._replace(nodes=nodes)
        self._unlearned += 1
        if self._unlearned >= plan.steps:
            plan.lesson = self._drafted_nodes(tree, plan)
            plan.taught = True
            self._unlearned = 0
            self._lessons += 1
        plan.curves.append(curves)
        self._thrift.choose(_milliseconds_since(now))
        return first_nodes(tree, nodes)

    def _steps_of(self, plan: _Plan) -> int:
        """Steps that a drafting plan is for, decided in its first one; no more if it is in vain."""
        if not plan.pays:
            return 1 + len(plan.legs)
        return plan.steps if plan.curves else self._usual_steps(plan)

    def _usual_steps(self, plan: _Plan) -> int:
        """Steps that a drafting plan is for: few, as long as little was learned."""
        if plan.outlook.probes:
            return 1
        affordable = self._thrift.steps(plan.leg.width.milliseconds)
        return min(affordable, 1 + self._lessons // _LESSONS_A_STEP)

    def _drafted_nodes(self, tree: DraftTree, plan: _Plan) -> DraftedNodes:
        """What can be learned from: nothing from nodes that their request's limits rule out."""
        depths = tree.depths.numpy()
        values = np.exp(tree.log_values.numpy(), dtype=np.float64)
        return DraftedNodes(depths, self._limits.values(plan.kinds.rows, depths, values))

    def learn(self, verdict: Verdict) -> None:
        """Take in what the step delivered."""
        plan = self._plan
        if plan is None or not plan.curves:
            return
        now = perf_counter()
        plan.leg.tokens = int(verdict.accept_lens.sum())
        if plan.lesson is not None:
            path = verdict.node_path.numpy()  # [bs, D + 1]
            requests, depths = np.nonzero(path >= 0)
            accepted = np.zeros((path.shape[0], plan.leg.width.nodes), dtype=bool)
            accepted[requests, path[requests, depths]] = True
            self._model.learn(plan.kinds, plan.lesson, accepted)
            plan.lesson = None
        self._thrift.plan(_milliseconds_since(now))

    def _settle(self, plan: _Plan) -> None:
        """Take in what a plan's finished legs took and brought."""
        forwards = sum(leg.forwards for leg in plan.legs)
        # A leg that a prefill cut off has chosen its width, too.
        chosen = len(plan.curves) if plan.drafts else len(plan.legs)
        choosing = self._thrift.settle(max(chosen, 1), plan.steps, drafted=plan.drafts)
        self._model.grow_older(plan.kinds.rows, forwards)
        curves = plan.remembered
        if plan.legs and plan.drafts:
            n = len(plan.legs)
            curves = torch.stack(plan.curves[:n]).mean(dim=0).numpy()  # [bs, W]
            self._model.remember(plan.kinds, curves)
            if plan.taught:
                steps = np.where(self._limits.are_bound(plan.kinds.rows), 0, n)
                self._model.remember_origins(plan.kinds, curves, steps)
        for nodes in dict.fromkeys(leg.width.nodes for leg in plan.legs):
            alike = [leg for leg in plan.legs if leg.width.nodes == nodes]
            took = sum(leg.milliseconds for leg in alike) / sum(leg.forwards for leg in alike)
            self._costs.correct(Measured(Step(len(plan.rows), nodes, plan.context), took))
        for leg in plan.legs:
            self._recent.add(leg.width, leg.tokens, leg.milliseconds, leg.forwards)
        times = np.array(plan.outlook.times)
        self._recent.compare(curves.sum(axis=0), times, forwards, choosing)
        if self._recent.count < _PUBLISHED_STEPS:
            return
        if self._metrics is not None:
            self._metrics.add(self._recent)
        self._log.take_in(self._recent)
        self._recent = WidthLog(self._widths)
        if self._log.count >= _LOGGED_STEPS:
            logger.info("dflash2: %s", self._log.describe())
            self._log = WidthLog(self._widths)

    def _agree(self, *choices: int) -> tuple[int, ...]:
        """Times differ between ranks, widths must not."""
        return first_ranks(choices, self._group)


def _milliseconds_since(moment: float) -> float:
    return 1e3 * (perf_counter() - moment)


def _prompt_end(request: Req) -> str:
    """The last words of a prompt; nothing where the server has no tokenizer."""
    if request.tokenizer is None:
        return ""
    return request.tokenizer.decode(request.origin_input_ids[-_PROMPT_TOKENS:])
