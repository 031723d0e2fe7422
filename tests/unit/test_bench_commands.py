"""``dflash2 bench``: what a new user gets wrong is answered with what to do."""

import pytest
from typer.testing import CliRunner

from dflash_sglang import cli
from dflash_sglang.bench.errors import BenchError
from dflash_sglang.bench.fleet import refusal, running_fleet
from dflash_sglang.bench.modes import Mode, Pair, parse_modes, server_arguments
from dflash_sglang.bench.records import write_run
from dflash_sglang.bench.server import Server, ServerError
from tests.unit.bench_runs import plain_and_tree

PAIR = Pair("target", "drafter")


def invoke(*words: str):
    return CliRunner().invoke(cli.app, list(words))


@pytest.mark.parametrize(
    ("mode", "flags"),
    [
        (Mode.PLAIN, []),
        (Mode.NATIVE, ["DFLASH", "drafter"]),
        (Mode.CHAIN, ["dflash2", "drafter", "--speculative-eagle-topk", "1"]),
        (Mode.TREE, ["dflash2", "drafter"]),
        (Mode.NGRAM, ["NGRAM"]),
    ],
)
def test_each_mode_is_sglangs_own_flags(mode, flags):
    arguments = server_arguments(mode, PAIR, ["--device", "cpu"])
    assert arguments[:2] == ["--model-path", "target"]
    assert arguments[-2:] == ["--device", "cpu"]
    names = ("--speculative-algorithm", "--speculative-draft-model-path")
    assert [word for word in arguments[2:-2] if word not in names] == flags


def test_eagle3_takes_its_own_drafter():
    pair = PAIR._replace(eagle3_drafter="eagle")
    assert "eagle" in server_arguments(Mode.EAGLE3, pair, [])
    with pytest.raises(BenchError, match="--eagle3-drafter"):
        server_arguments(Mode.EAGLE3, PAIR, [])


@pytest.mark.parametrize("mode", [Mode.NATIVE, Mode.CHAIN, Mode.TREE])
def test_a_missing_drafter_is_named(mode):
    with pytest.raises(BenchError, match=f"{mode} needs a drafter: give --drafter"):
        server_arguments(mode, Pair("target", None), [])


@pytest.mark.parametrize("text", ["", "plain,plain", "plain,medusa"])
def test_wrong_modes_are_refused(text):
    with pytest.raises(BenchError, match="plain, native, chain, tree, ngram, eagle3"):
        parse_modes(text)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--url", "tree"], "--url expects MODE=VALUE"),
        (["--url", "medusa=http://x"], "MODE=VALUE with one of plain"),
        (["--url", "plain=http://x", "--mode-args", "tree"], "--mode-args expects MODE=VALUE"),
        (["--url", "plain=http://127.0.0.1:9"], "no OpenAI-compatible server"),
        (["--url", "plain=http://x", "--temperature", "hot"], "--temperature expects numbers"),
        (["--url", "plain=http://x", "--concurrency", "0"], "whole numbers from 1"),
        (["--url", "plain=http://x", "--concurrency", "1.5"], "whole numbers from 1"),
        (["--url", "plain=http://x", "--concurrency", "", "--rate", ""], "nothing to measure"),
        (["--url", "plain=http://x", "--rate", "0"], "above 0"),
        (["--url", "plain=http://x", "--workload", "poetry"], "unknown workload"),
        (["--target", "t", "--modes", "tree"], "--drafter"),
        (["--target", "/nowhere", "--modes", "plain"], "--target /nowhere does not exist"),
        (["--target", "t", "--drafter", "./nowhere"], "--drafter ./nowhere does not exist"),
        (["--url", "plain=http://127.0.0.1:9", "--out", "/dev/null/x"], "give another --out"),
        (["compare", "a.json", "b.json"], "cannot read a.json"),
    ],
)
def test_wrong_options_get_one_sentence(words, sentence):
    result = invoke("bench", *words)
    assert result.exit_code != 0
    assert isinstance(result.exception, ValueError)
    assert sentence in str(result.exception)


def test_compare_prints_a_verdict_for_each_row(tmp_path):
    for name, speed in (("a", 2.0), ("b", 4.0)):
        write_run(plain_and_tree(tree_speed=speed), tmp_path / f"{name}.json")
    result = invoke("bench", "compare", str(tmp_path / "a.json"), str(tmp_path / "b.json"))
    assert result.exit_code == 0
    assert "Same machine, versions and setup." in result.output
    assert "better" in result.output and "within" in result.output


@pytest.mark.parametrize("words", [["bench"], ["bench", "compare"], ["roofline"]])
def test_help_shows_an_example(words):
    result = invoke(*words, "--help")
    assert result.exit_code == 0
    assert "Example: dflash2" in result.output


def test_a_dead_url_is_noticed_before_any_server_is_started(tmp_path, monkeypatch):
    monkeypatch.setattr(Server, "start", lambda _: pytest.fail("a server was started"))
    words = ("--target", "t", "--url", "plain=http://127.0.0.1:9", "--modes", "plain,ngram")
    result = invoke("bench", *words, "--out", str(tmp_path))
    assert "start one with `dflash2 serve`" in str(result.exception)


def test_plain_decoding_that_does_not_start_ends_the_run_with_the_reason(tmp_path, monkeypatch):
    server = Server([], log=tmp_path / "server.log")
    server.log.write_text("ValueError: no such model: nowhere")
    monkeypatch.setattr(Server, "start", lambda _: None)
    monkeypatch.setattr(Server, "wait", failing)
    with (
        pytest.raises(ServerError, match="nothing to compare with: no such model: nowhere"),
        running_fleet({Mode.PLAIN: server}, {}),
    ):
        pass


def test_a_run_in_which_nothing_starts_but_plain_says_why(tmp_path, monkeypatch):
    server = Server([], log=tmp_path / "server.log")
    server.log.write_text("OSError: no such drafter")
    monkeypatch.setattr(Server, "start", lambda _: None)
    monkeypatch.setattr(Server, "wait", failing)
    with (
        pytest.raises(BenchError, match="could be started:\n  tree: no such drafter"),
        running_fleet({Mode.TREE: server}, {Mode.PLAIN: "http://x"}),
    ):
        pass


def failing(_server: Server) -> None:
    raise ServerError("exited")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--device", "foo"], "expected one of arc-pro-b70"),
        (["--weights", "-1"], "--weights must be above 0, got -1"),
        (["--bits", "0"], "--bits must be above 0, got 0"),
        (["--tau", "0.5"], "--tau counts the bonus token"),
        (["--draft-ms", "-1"], "--draft-ms must not be negative, got -1"),
        (["--verify-tokens", "0"], "--verify-tokens must be 1 or more"),
        (["--acceptance", "x"], "--acceptance expects chances such as"),
        (["--acceptance", "1.2"], "between 0 and 1"),
        (["--measure", "--bits", "4"], "give --bits 16 or --bits 32, got 4"),
    ],
)
def test_wrong_inputs_of_the_roofline_are_refused_before_anything_is_shown(words, sentence):
    result = invoke("roofline", *words)
    assert isinstance(result.exception, ValueError)
    assert sentence in str(result.exception)
    assert result.output == ""


def test_a_file_of_the_roofline_that_cannot_be_written_is_named(tmp_path):
    result = invoke("roofline", "--json", str(tmp_path / "nowhere" / "r.json"))
    assert isinstance(result.exception, ValueError)
    assert "cannot write --json" in str(result.exception)


def test_roofline_writes_its_figures(tmp_path):
    result = invoke("roofline", "--verify-ms", "64.1", "--json", str(tmp_path / "r.json"))
    assert result.exit_code == 0
    assert '"kind": "projected"' in (tmp_path / "r.json").read_text()


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("x\nValueError: first\n  at y\nsglang.srt.Oops.OtherError: last\nbye", "last"),
        ("[2026-01-01 TP0] ValueError: DFLASH is not supported", "DFLASH is not supported"),
        ("nothing of use", "its log is"),
    ],
)
def test_a_refusal_is_the_last_error_of_the_log(log, reason, tmp_path):
    server = Server([], log=tmp_path / "server.log")
    server.log.write_text(log)
    assert reason in refusal(server)
