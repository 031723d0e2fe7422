"""A run: every mode through the same prompts in turn, round after round."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice, pairwise, zip_longest
from typing import NamedTuple

import aiohttp
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dflash_sglang.bench import phases, widths
from dflash_sglang.bench.client import Message
from dflash_sglang.bench.counters import Counters, read_counters
from dflash_sglang.bench.errors import BenchError
from dflash_sglang.bench.fleet import Endpoint, Fleet, running_fleet
from dflash_sglang.bench.load import Send, drive
from dflash_sglang.bench.machine import measured_now
from dflash_sglang.bench.modes import PLAIN, Mode, Pair, server_arguments
from dflash_sglang.bench.observe import EnergyMeter, watching_kv
from dflash_sglang.bench.provenance import Measured
from dflash_sglang.bench.records import FORMAT, Case, Cell, Load, Round, Run, Setup
from dflash_sglang.bench.server import Server, ServerError
from dflash_sglang.bench.stream import Sampling, Stream, model_name, open_session, stream_chat
from dflash_sglang.bench.workloads import Prompt

_WARM_UP_PROMPTS = 4
_WARM_UP_TOKENS = 16
_FLUSH_ATTEMPTS = 20
_FLUSH_WAIT_S = 0.1
_INTERRUPTED = "the run was interrupted"


class BrokenRun(BenchError):
    """A run that ended before its last round.

    Args:
        reason: one sentence.
        run: the rounds that were measured in every cell.
    """

    def __init__(self, reason: str, run: Run) -> None:
        kept = f"{run.setup.rounds} whole round" + ("s" if run.setup.rounds > 1 else "")
        super().__init__(f"{reason.rstrip('.')}. The report holds the {kept} measured until then.")
        self.run = run


class Plan(NamedTuple):
    """What a run is to measure."""

    pair: Pair
    modes: list[Mode]
    urls: dict[Mode, str]  # modes whose servers run already
    server_arguments: list[str]  # shared by the servers that are started here
    mode_arguments: dict[Mode, list[str]]  # of one mode's server alone
    startup_timeout: float  # seconds
    prompts: dict[str, list[Prompt]]  # workload -> prompts of a round
    cases: list[Case]
    rounds: int
    max_tokens: int
    ignore_eos: bool
    seed: int
    prompts_per_user: int | None = None  # None: every load is asked all prompts of a round
    least_prompts: int = 1  # otherwise, however few the users are
    keeps_cache: bool = False  # do not empty prefix caches before each round
    starts: int = 1  # of the servers, over which the rounds are spread

    def asked(self, case: Case, index: int) -> list[Prompt]:
        """Prompts of a case in one round; fewer than all of them differ from round to round."""
        prompts = self.prompts[case.workload]
        if self.prompts_per_user is None or case.load.concurrency is None:
            return prompts
        wanted = max(self.least_prompts, self.prompts_per_user * case.load.concurrency)
        count = min(len(prompts), wanted)
        start = index * count % len(prompts)
        return (prompts[start:] + prompts[:start])[:count]


def execute(plan: Plan, command: str, console: Console) -> Run:
    """Start the servers, measure, stop the servers; as often as the plan says.

    Two servers started alike differ by some per cent as long as they run, by where their memory
    lies; only starting them again tells such luck from what a mode is worth.

    Args:
        command: the command line that asked for it, for the provenance of every figure.

    Raises:
        BenchError: a mode lacks its drafter, a URL does not answer, a server does not speculate.
        ServerError: plain decoding did not start.
        BrokenRun: something failed, or the user interrupted it, behind the first round.
    """
    asyncio.run(_check_answering(plan.urls.values()))  # before minutes of starting the others
    measured = measured_now(command)
    taken = _Taken()
    for rounds in _rounds_by_start(plan):
        try:
            _sit(plan, rounds, taken, console)
        except (BenchError, ServerError, KeyboardInterrupt) as error:
            if not taken.whole_rounds:
                raise
            taken.broken = str(error) or _INTERRUPTED
        if taken.broken is not None:
            break
    run = _run(plan, taken, measured)
    if taken.broken is not None:
        raise BrokenRun(taken.broken, run)
    return run


@dataclass
class _Taken:
    """What was measured so far."""

    endpoints: list[Endpoint] = field(default_factory=list)
    failed: dict[Mode, str] = field(default_factory=dict)  # why there is nothing of these modes
    rounds: dict[tuple[Mode, Case], list[Round]] = field(default_factory=dict)
    broken: str | None = None  # why there are no more rounds, if there should be

    @property
    def whole_rounds(self) -> int:
        """Rounds that every cell has."""
        return min(map(len, self.rounds.values()), default=0)


def _rounds_by_start(plan: Plan) -> list[range]:
    """Rounds of each start of the servers, as evenly as they go."""
    bounds = [plan.rounds * start // plan.starts for start in range(plan.starts + 1)]
    return [range(*pair) for pair in pairwise(bounds)]


def _sit(plan: Plan, rounds: range, taken: _Taken, console: Console) -> None:
    """Start the servers, measure some rounds, stop the servers."""
    servers = {
        mode: Server(
            server_arguments(
                mode, plan.pair, [*plan.server_arguments, *plan.mode_arguments.get(mode, [])]
            ),
            startup_timeout=plan.startup_timeout,
        )
        for mode in plan.modes
        if mode not in plan.urls and mode not in taken.failed
    }
    if servers:
        console.print(f"Starting servers: {', '.join(map(str, servers))} ...")
    with running_fleet(servers, plan.urls) as fleet:
        for mode, reason in fleet.refused.items():
            _lose(mode, reason, taken, console)
        taken.endpoints = fleet.endpoints
        asyncio.run(_measure(plan, fleet, rounds, taken, console))


def _lose(mode: Mode, reason: str, taken: _Taken, console: Console) -> None:
    """Go on without a mode, unless rounds of it were measured already.

    Raises:
        BenchError: they were.
    """
    if taken.rounds:
        raise BenchError(f"{mode} could not be measured again: {reason}")
    taken.failed[mode] = reason
    console.print(f"[yellow]{mode} cannot be measured:[/] {reason}")


def _run(plan: Plan, taken: _Taken, measured: Measured) -> Run:
    whole = taken.whole_rounds
    setup = Setup(
        target=plan.pair.target,
        drafter=plan.pair.drafter,
        modes={str(endpoint.mode): endpoint.origin for endpoint in taken.endpoints},
        max_tokens=plan.max_tokens,
        prompts={workload: len(prompts) for workload, prompts in plan.prompts.items()},
        rounds=whole,
        seed=plan.seed,
        prompts_per_user=plan.prompts_per_user,
        least_prompts=plan.least_prompts,
        keeps_cache=plan.keeps_cache,
        starts=sum(rounds.start < whole for rounds in _rounds_by_start(plan)),
    )
    return Run(
        format=FORMAT,
        measured=measured,
        setup=setup,
        refused={str(mode): reason for mode, reason in taken.failed.items()},
        cells=[
            Cell(mode=str(mode), case=case, rounds=rounds[:whole])
            for (mode, case), rounds in taken.rounds.items()
        ],
    )


async def _check_answering(urls: Iterable[str]) -> None:
    async with open_session() as session:
        for url in urls:
            await model_name(session, url.rstrip("/"))


async def _measure(
    plan: Plan, fleet: Fleet, rounds: range, taken: _Taken, console: Console
) -> None:
    async with open_session() as session:
        lanes = await _warm_lanes(plan, fleet.endpoints, session, taken, console)
        for case in plan.cases:
            for lane in lanes:
                taken.rounds.setdefault((lane.mode, case), [])
        with Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
        ) as progress:
            task = progress.add_task("", total=len(rounds) * len(taken.rounds))
            try:
                for index in rounds:
                    for case in plan.cases:
                        for lane in _rotated(lanes, index):
                            what = f"round {index + 1}, {case.workload}, T={case.temperature:g}"
                            progress.update(task, description=f"{what}, {case.load}: {lane.mode}")
                            taken.rounds[lane.mode, case].append(await lane.round(case, index))
                            progress.advance(task)
            except (BenchError, asyncio.CancelledError) as error:
                taken.broken = str(error) or _INTERRUPTED
                if not taken.whole_rounds:
                    raise


async def _warm_lanes(
    plan: Plan,
    endpoints: list[Endpoint],
    session: aiohttp.ClientSession,
    taken: _Taken,
    console: Console,
) -> list[_Lane]:
    """Lanes whose servers answer; a server that was given, or plain's, has to."""
    lanes: list[_Lane] = []
    for endpoint in endpoints:
        lane = _Lane(session, endpoint, plan, await model_name(session, endpoint.url))
        try:
            await lane.warm_up()
        except BenchError as error:
            if endpoint.mode == PLAIN or endpoint.mode in plan.urls:
                raise
            _lose(endpoint.mode, str(error), taken, console)
        else:
            lanes.append(lane)
    return lanes


class _Lane:
    """One mode's way through the run."""

    def __init__(
        self, session: aiohttp.ClientSession, endpoint: Endpoint, plan: Plan, model: str
    ) -> None:
        self.mode = endpoint.mode
        self._session = session
        self._url = endpoint.url
        self._plan = plan
        self._model = model

    async def warm_up(self) -> None:
        """A few short requests, greedy and sampled, that nobody counts.

        Raises:
            BenchError: a server that should speculate does not.
        """
        plan = self._plan
        prompts = list(_warm_up_prompts(plan))
        load = Load(concurrency=len(prompts))
        for temperature in dict.fromkeys((0.0, *(case.temperature for case in plan.cases))):
            sampling = Sampling(temperature, _WARM_UP_TOKENS, plan.seed, ignore_eos=True)
            answers = await drive(self._sender(sampling), prompts, load, plan.seed)
            steps = sum(answer.verify_steps for answer in answers)
            if self.mode != PLAIN and not steps:
                raise BenchError(
                    f"the server at {self._url} reports no verify steps, so it does not speculate, "
                    f"but it was given for {self.mode}: start it with --speculative-algorithm, or "
                    "give its URL to plain."
                )
            if self.mode == PLAIN and steps:
                raise BenchError(
                    f"the server at {self._url} speculates, but it was given for plain: start one "
                    "without --speculative-algorithm."
                )

    async def round(self, case: Case, index: int) -> Round:
        """All prompts of a case once, on an empty prefix cache if that was asked for."""
        plan = self._plan
        sampling = Sampling(case.temperature, plan.max_tokens, plan.seed, plan.ignore_eos)
        if not plan.keeps_cache:
            await self._flush()
        before = await self._counters()
        async with watching_kv(self._session, self._url) as watch:
            meter = EnergyMeter()
            start = time.perf_counter()
            answers = await drive(
                self._sender(sampling), plan.asked(case, index), case.load, plan.seed + index
            )
            wall = time.perf_counter() - start
            energy = meter.joules()
        after = await self._counters()
        return Round(
            answers=answers,
            wall_s=wall,
            kv_tokens=watch.most,
            energy_j=energy,
            widths=widths.between(widths.width_use(before), widths.width_use(after)),
            phases=phases.between(phases.phase_use(before), phases.phase_use(after)),
        )

    async def _counters(self) -> Counters | None:
        return await read_counters(self._session, self._url) if self.mode.is_ours else None

    def _sender(self, sampling: Sampling) -> Send:
        async def send(messages: list[Message], seed: int) -> Stream:
            return await stream_chat(
                self._session, self._url, self._model, messages, sampling._replace(seed=seed)
            )

        return send

    async def _flush(self) -> None:
        """Empty the prefix cache, or later rounds would find their prompts there.

        A server that has no such endpoint keeps what it has.
        """
        for _ in range(_FLUSH_ATTEMPTS):
            try:
                async with self._session.post(f"{self._url}/flush_cache") as response:
                    if response.status in (200, 404):
                        return
            except (aiohttp.ClientError, TimeoutError) as error:
                raise BenchError(f"the server at {self._url} is gone: {error}.") from error
            # SGLang refuses while the last request is still being wound up.
            await asyncio.sleep(_FLUSH_WAIT_S)
        raise BenchError(f"the server at {self._url} is busy: its prefix cache cannot be emptied.")


def _rotated(lanes: list[_Lane], index: int) -> list[_Lane]:
    # No mode is always the one behind an idle machine, or the one behind the busiest.
    shift = index % len(lanes)
    return lanes[shift:] + lanes[:shift]


def _warm_up_prompts(plan: Plan) -> Iterator[Prompt]:
    """The first prompts of all workloads in turn: at least one of each."""
    count = max(_WARM_UP_PROMPTS, len(plan.prompts))
    in_turn = (prompt for together in zip_longest(*plan.prompts.values()) for prompt in together)
    return islice((prompt for prompt in in_turn if prompt is not None), count)
