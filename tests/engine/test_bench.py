"""The benchmark against real servers: every mode that starts, a refusal by name, a whole report."""

import shutil
import subprocess
from collections.abc import Iterator

import matplotlib.image
import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner

from dflash_sglang import cli
from dflash_sglang.bench import metrics
from dflash_sglang.bench.cases import all_cases
from dflash_sglang.bench.errors import BenchError
from dflash_sglang.bench.modes import PLAIN, Pair, parse_mode
from dflash_sglang.bench.records import Load, Run, read_run
from dflash_sglang.bench.server import Server, cpu_arguments
from dflash_sglang.bench.session import Plan, execute
from dflash_sglang.bench.workloads import load_workload
from tests.engine.checkpoints import save_random_drafter, save_target
from tests.engine.tokenizer import save_tokenizer

SHARED = ["--dtype", "float32", *cpu_arguments()]
TOKENS = 24
PROMPTS = 4
ROUNDS = 2
TREE = parse_mode("tree")
MODES = ["plain", "native", "chain", "tree"]

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> Pair:
    target = save_target("qwen3", tmp_path_factory.mktemp("chatting"))
    save_tokenizer(target)
    return Pair(str(target), str(save_random_drafter(tmp_path_factory.mktemp("drafter"))))


@pytest.fixture(scope="module")
def plain(pair) -> Iterator[str]:
    """URL of a server that does not speculate; every test that needs one shares it."""
    with Server(["--model-path", pair.target, *SHARED]) as server:
        yield server.url


def plan(pair: Pair, **changes) -> Plan:
    made = Plan(
        pair=pair,
        modes=[PLAIN, TREE],
        urls={},
        server_arguments=SHARED,
        mode_arguments={},
        startup_timeout=300,
        prompts={"builtin": load_workload("builtin", PROMPTS)},
        cases=all_cases(["builtin"], [0.0], [Load(concurrency=2)]),
        rounds=ROUNDS,
        max_tokens=TOKENS,
        ignore_eos=True,
        seed=0,
    )
    return made._replace(**changes)


@pytest.fixture(scope="module")
def out(pair, plain, tmp_path_factory):
    """The report of the whole command: one server is given, three start, eagle3's cannot."""
    folder = tmp_path_factory.mktemp("report")
    empty = tmp_path_factory.mktemp("empty")
    result = CliRunner().invoke(
        cli.app,
        [
            *("bench", "--target", pair.target, "--drafter", str(pair.drafter)),
            *("--modes", ",".join([*MODES, "eagle3"]), "--url", f"plain={plain}"),
            *("--eagle3-drafter", str(empty)),
            *("--server-args", " ".join(SHARED)),
            *("--prompts", str(PROMPTS), "--max-tokens", str(TOKENS), "--ignore-eos"),
            *("--temperature", "0,1", "--concurrency", "2", "--rate", "8"),
            *("--rounds", str(ROUNDS), "--out", str(folder)),
        ],
    )
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture(scope="module")
def run(out) -> Run:
    return read_run(out / "run.json")


def test_every_mode_was_measured_or_refused_with_the_servers_reason(run):
    assert run.modes == MODES
    assert run.refused.keys() == {"eagle3"}
    assert "empty" in run.refused["eagle3"]


def test_every_round_has_every_answer_in_full(run):
    assert len(run.cells) == len(run.modes) * 4  # two temperatures, two loads
    for cell in run.cells:
        assert len(cell.rounds) == ROUNDS
        for round_ in cell.rounds:
            assert [answer.tokens for answer in round_.answers] == [TOKENS] * PROMPTS
            assert all(sum(answer.chunk_tokens) == TOKENS for answer in round_.answers)


def test_greedy_answers_are_those_of_plain_decoding(run):
    for case in run.cases:
        if case.temperature == 0:
            plain = run.cell("plain", case)
            for mode in ("native", "chain", "tree"):
                same, of = metrics.equal_answers(run.cell(mode, case), plain)
                assert (same, of) == (PROMPTS * ROUNDS, PROMPTS * ROUNDS)


def test_the_histogram_is_that_of_the_tokens(run):
    for cell in run.cells:
        for round_ in cell.rounds:
            for answer in round_.answers:
                assert sum(answer.accept_histogram) == answer.verify_steps
                if cell.mode in ("chain", "tree"):
                    drafted = sum(j * steps for j, steps in enumerate(answer.accept_histogram))
                    # The last step may have been cut short by the limit.
                    assert TOKENS - 1 <= answer.verify_steps + drafted < TOKENS + 8


def test_kv_use_is_reported_or_absent_but_never_nothing(run):
    seen = [round_.kv_tokens for cell in run.cells for round_ in cell.rounds]
    assert all(value is None or value >= 0 for value in seen)


def test_the_report_is_whole(out):
    for name in ("report.html", "report.md", "figures.json", "pareto.png", "accept_histogram.png"):
        assert (out / name).stat().st_size > 500


def test_the_page_can_be_looked_at_in_a_browser(out, tmp_path):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium on this machine")
    picture = tmp_path / "report.png"
    subprocess.run(
        [
            *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1280,4000"),
            *(f"--screenshot={picture}", (out / "report.html").as_uri()),
        ],
        check=True,
        capture_output=True,
        timeout=120,
    )
    pixels = matplotlib.image.imread(picture)
    assert pixels.shape[:2] == (4000, 1280)
    # Something is drawn all the way down to the last picture.
    assert (pixels[..., :3].min(axis=(1, 2)) < 0.9)[3000:].any()


def test_a_server_without_speculation_is_not_taken_for_a_tree(pair, plain):
    with pytest.raises(BenchError, match="does not speculate"):
        execute(
            plan(pair, urls={parse_mode("tree"): plain}, modes=[parse_mode("tree")]), "c", Console()
        )


def test_plain_decoding_can_be_measured_alone(pair, plain):
    alone = execute(plan(pair, urls={PLAIN: plain}, modes=[PLAIN]), "c", Console())
    assert alone.modes == ["plain"]
    assert msgspec.json.decode(msgspec.json.encode(alone), type=Run) == alone
