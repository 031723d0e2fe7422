"""A whole run against stand-ins: what each server is asked, and what is written down of it."""

import os
import signal
import threading
import time
from types import SimpleNamespace

import msgspec
import pytest
from rich.console import Console

from dflash_sglang.bench import session
from dflash_sglang.bench.cases import all_cases
from dflash_sglang.bench.errors import BenchError
from dflash_sglang.bench.metrics import METRICS
from dflash_sglang.bench.modes import Pair, parse_mode
from dflash_sglang.bench.records import Load, PhaseUse, Round, Run, WidthUse
from dflash_sglang.bench.server import ServerError
from dflash_sglang.bench.session import BrokenRun, Plan, execute
from dflash_sglang.bench.workloads import load_workloads
from tests.unit.bench_server import Behaviour, serving

QUICK = Behaviour(first_s=0.0, gap_s=0.0)
WARM_UP = 2 * 4  # requests: two temperatures, four prompts


def plan(urls: dict[str, str], workloads: list[str], users: list[int], **changes) -> Plan:
    prompts = load_workloads(workloads, 16)
    made = Plan(
        pair=Pair("as served", None),
        modes=[parse_mode(name) for name in urls],
        urls={parse_mode(name): url for name, url in urls.items()},
        server_arguments=[],
        mode_arguments={},
        startup_timeout=1,
        prompts=prompts,
        cases=all_cases(prompts, [1.0], [Load(concurrency=count) for count in users]),
        rounds=2,
        max_tokens=6,
        ignore_eos=False,
        seed=0,
    )
    return made._replace(**changes)


def measure(made: Plan) -> Run:
    return execute(made, "dflash2 bench", Console(quiet=True))


def asked(round_: Round) -> list[str]:
    return [answer.prompt for answer in round_.answers]


def test_every_load_is_asked_all_prompts_unless_fewer_are_wanted():
    with serving(QUICK) as fake:
        run = measure(plan({"tree": fake.url}, ["builtin:json"], [1, 4]))
    assert [len(round_.answers) for cell in run.cells for round_ in cell.rounds] == [16] * 4
    assert (run.setup.prompts_per_user, run.setup.keeps_cache) == (None, False)


def test_prompts_for_each_user_differ_from_round_to_round_and_not_between_modes():
    with serving(QUICK) as one, serving(QUICK) as other:
        made = plan(
            {"tree8": one.url, "tree16": other.url},
            ["builtin:json"],
            [1, 4, 16],
            prompts_per_user=1,
            least_prompts=2,
        )
        run = measure(made)
    for users in (1, 4, 16):
        cells = [cell for cell in run.cells if cell.case.load.concurrency == users]
        first, second = (asked(round_) for round_ in cells[0].rounds)
        assert len(first) == len(second) == max(users, 2)
        assert [asked(round_) for round_ in cells[1].rounds] == [first, second]
        if users < 16:
            assert not set(first) & set(second)
    assert (run.setup.prompts_per_user, run.setup.least_prompts) == (1, 2)


@pytest.mark.parametrize(("keeps", "flushes"), [(False, 2), (True, 0)])
def test_the_prefix_cache_is_emptied_before_each_round_unless_it_is_kept(keeps, flushes):
    with serving(QUICK) as fake:
        run = measure(plan({"tree": fake.url}, ["builtin:json"], [4], keeps_cache=keeps))
    assert fake.flushes == flushes
    assert run.setup.keeps_cache is keeps


@pytest.mark.parametrize("rounds", [1, 2])
def test_rounds_before_the_one_that_broke_are_kept(rounds):
    answered = WARM_UP + 16 * rounds + 3
    failing = QUICK._replace(fails_with="out of memory", fails_after=answered)
    with serving(QUICK) as sound, serving(failing) as fake:
        made = plan({"tree8": sound.url, "tree": fake.url}, ["builtin:json"], [4], rounds=4)
        with pytest.raises(BrokenRun, match=rf"out of memory.* holds the {rounds} whole") as broken:
            measure(made)
    run = broken.value.run
    assert run.setup.rounds == rounds
    assert [len(cell.rounds) for cell in run.cells] == [rounds, rounds]


class Startable:
    """In a server's place: it answers at once, as the stand-in does, and counts its starts."""

    address = ""
    starts = 0
    fails_at = 0

    def __init__(self, arguments, *, startup_timeout):
        self.url, self.command = type(self).address, "python -m sglang.launch_server"
        self.log = SimpleNamespace(read_text=lambda errors: "RuntimeError: no memory")

    def start(self):
        type(self).starts += 1

    def wait(self):
        if type(self).starts == type(self).fails_at:
            raise ServerError("exited")

    def ask_to_stop(self):
        pass

    stop = ask_to_stop


@pytest.fixture
def startable(monkeypatch):
    with serving(QUICK) as fake:
        stand_in = type("StandIn", (Startable,), {"address": fake.url})
        monkeypatch.setattr(session, "Server", stand_in)
        yield stand_in


def started_here(**changes) -> Plan:
    modes = [parse_mode("tree8"), parse_mode("tree16")]
    pair = Pair("target", "drafter")
    return plan({}, ["builtin:json"], [4], pair=pair, modes=modes, prompts_per_user=1, **changes)


def test_rounds_are_spread_over_the_starts_of_the_servers(startable):
    run = measure(started_here(rounds=3, starts=2))
    assert startable.starts == 2 * 2
    assert (run.setup.rounds, run.setup.starts) == (3, 2)
    for cell in run.cells:
        first, second, third = map(asked, cell.rounds)
        assert len({*first, *second, *third}) == 3 * 4  # other prompts in each round


def test_a_mode_that_does_not_start_again_ends_the_run_and_its_rounds_are_kept(startable):
    startable.fails_at = 4
    with pytest.raises(BrokenRun, match="tree16 could not be measured again: no memory") as broken:
        measure(started_here(rounds=4, starts=2))
    run = broken.value.run
    assert [len(cell.rounds) for cell in run.cells] == [2, 2]
    assert (run.setup.rounds, run.setup.starts) == (2, 1)


def test_a_mode_that_never_starts_is_left_out(startable):
    startable.fails_at = 2
    run = measure(started_here(rounds=2, starts=2))
    assert list(run.refused) == ["tree16"] and startable.starts == 3
    assert [(cell.mode, len(cell.rounds)) for cell in run.cells] == [("tree8", 2)]


@pytest.fixture
def interruptible():
    """Jobs that a shell runs in the background ignore interrupts, and so do their children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_rounds_before_an_interrupt_are_kept():
    with serving(QUICK) as fake:

        def interrupt():
            while len(fake.bodies) < WARM_UP + 16 + 3:
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(BrokenRun, match="the run was interrupted") as broken:
            measure(plan({"tree": fake.url}, ["builtin:json"], [4], rounds=1_000))
        thread.join()
    (cell,) = broken.value.run.cells
    assert 1 <= len(cell.rounds) == broken.value.run.setup.rounds < 1_000


def test_a_run_without_a_whole_round_has_nothing_to_keep():
    failing = QUICK._replace(fails_with="out of memory", fails_after=WARM_UP + 3)
    with serving(failing) as fake, pytest.raises(BenchError, match="out of memory") as broken:
        measure(plan({"tree": fake.url}, ["builtin:json"], [4]))
    assert not isinstance(broken.value, BrokenRun)


def test_every_workload_is_warmed_up():
    workloads = [f"builtin:{kind}" for kind in ("code", "json", "chat", "prose", "translation")]
    with serving(QUICK) as fake:
        made = plan({"tree": fake.url}, workloads, [1], prompts_per_user=1)
        measure(made)
    first = {body["messages"][0]["content"] for body in fake.bodies[:5]}
    assert first == {prompts[0].messages[0]["content"] for prompts in made.prompts.values()}


TIMES = tuple(
    f'dflash2_phase_milliseconds_total{{{{phase="{phase}"}}}} {{n}}'
    for phase in ("draft", "verify", "commit")
)


def test_where_a_step_went_is_counted_round_by_round():
    published = QUICK._replace(metrics=(*TIMES, 'dflash2_steps_total{{nodes="8"}} {n}'))
    with serving(published) as fake, serving(QUICK) as silent:
        run = measure(plan({"tree8": fake.url, "chain": silent.url}, ["builtin:json"], [4]))
    cells = {cell.mode: cell for cell in run.cells}
    timed, other = cells["tree8"], cells["chain"]
    requests = len(timed.rounds[0].answers)
    assert timed.rounds[0].phases == PhaseUse(
        steps=requests, ms=dict.fromkeys(("draft", "verify", "commit"), float(requests))
    )
    assert [round_.phases for round_ in other.rounds] == [None, None]
    assert METRICS["verify_ms"].of(timed.rounds[1]) == 1.0


def test_what_an_adaptive_server_chose_is_counted_round_by_round():
    published = Behaviour(
        first_s=0.0, gap_s=0.0, metrics=('dflash2_steps_total{{nodes="8"}} {n}',
        'dflash2_steps_total{{nodes="1"}} 5', "dflash2_promised_tokens_total {n}",
        "dflash2_promised_milliseconds_total {n}", "dflash2_tokens_total {n}",
        "dflash2_milliseconds_total {n}", 'dflash2_fixed_tokens_total{{nodes="8"}} {n}',
        'dflash2_fixed_milliseconds_total{{nodes="8"}} {n}',
        "dflash2_choosing_milliseconds_total {n}"),
    )  # fmt: skip
    with serving(published) as fake, serving(QUICK) as fixed:
        run = measure(
            plan({"tree8": fixed.url, "adaptive": fake.url}, ["builtin:json"], [4])._replace(
                prompts_per_user=1
            )
        )
    other, adaptive = run.cells
    assert [round_.widths for round_ in other.rounds] == [None, None]
    # Four requests a round; what was counted in the warm-up is not in it.
    expected = WidthUse(
        steps={8: 4}, promised_tokens=4, promised_ms=4, tokens=4, ms=4, fixed_tokens={8: 4},
        fixed_ms={8: 4}, choosing_ms=4,
    )  # fmt: skip
    assert [round_.widths for round_ in adaptive.rounds] == [expected, expected]
    assert msgspec.json.decode(msgspec.json.encode(run), type=Run) == run


@pytest.mark.parametrize("metrics", [(), ("not a metric at all {n}",), ("sglang:x 1",)])
def test_a_server_that_publishes_nothing_is_measured_all_the_same(metrics):
    with serving(QUICK._replace(metrics=metrics)) as fake:
        run = measure(plan({"adaptive": fake.url}, ["builtin:json"], [4]))
    assert [round_.widths for round_ in run.cells[0].rounds] == [None, None]
