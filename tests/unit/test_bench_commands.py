"""``dflash2 bench``: what a new user gets wrong is answered with what to do."""

import argparse
import json
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dflash_sglang import cli
from dflash_sglang.bench import server as servers
from dflash_sglang.bench.errors import BenchError
from dflash_sglang.bench.fleet import refusal, running_fleet
from dflash_sglang.bench.modes import PLAIN, Pair, parse_mode, parse_modes, server_arguments
from dflash_sglang.bench.records import read_run, write_run
from dflash_sglang.bench.server import HOST, Server, ServerError, free_port
from dflash_sglang.bench.styles import style
from tests.unit.bench_runs import plain_and_tree
from tests.unit.bench_server import Behaviour, serving

PAIR = Pair("target", "drafter")


def invoke(*words: str):
    return CliRunner().invoke(cli.app, list(words))


NODES, CHILDREN = "--speculative-num-draft-tokens", "--speculative-eagle-topk"
FIXED, ADAPTIVE = '{"adaptive": false}', '{"adaptive": true}'


@pytest.mark.parametrize(
    ("mode", "flags"),
    [
        ("plain", []),
        ("native", ["DFLASH", "drafter"]),
        ("chain", ["dflash2", "drafter", CHILDREN, "1", FIXED]),
        ("chain4", ["dflash2", "drafter", NODES, "4", CHILDREN, "1", FIXED]),
        ("tree", ["dflash2", "drafter", FIXED]),
        ("tree8", ["dflash2", "drafter", NODES, "8", FIXED]),
        ("adaptive", ["dflash2", "drafter", NODES, "32", ADAPTIVE]),
        ("ngram", ["NGRAM"]),
    ],
)
def test_each_mode_is_sglangs_own_flags(mode, flags):
    arguments = server_arguments(parse_mode(mode), PAIR, ["--device", "cpu"])
    assert arguments[:2] == ["--model-path", "target"]
    assert {"--device", "--enable-metrics"} < set(arguments)
    names = ("--speculative-algorithm", "--speculative-draft-model-path", "--dflash2-config")
    shared = ("--enable-metrics", "--device", "cpu")
    asked = [word for word in arguments[2:] if word not in (*names, *shared)]
    assert asked == flags


def test_every_mode_starts_with_flags_that_sglang_knows():
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    parser.add_argument("--dflash2-config", type=json.loads)
    for mode in parse_modes("plain,native,chain,chain4,tree,tree8,adaptive,ngram"):
        parsed = parser.parse_args(server_arguments(mode, PAIR, []))
        assert parsed.model_path == "target"


@pytest.mark.parametrize("flag", [["--dflash2-config", "{}"], ["--dflash2-config={}"]])
def test_a_config_of_ones_own_is_joined_with_the_modes(flag):
    words = [word.replace("{}", '{"shared_noise": false}') for word in flag]
    arguments = server_arguments(parse_mode("tree8"), PAIR, words)
    assert [word for word in arguments if word.startswith("--dflash2-config")] == [
        "--dflash2-config"
    ]
    assert json.loads(arguments[-1]) == {"adaptive": False, "shared_noise": False}


def test_a_config_in_a_file_is_joined_too(tmp_path):
    (tmp_path / "c.json").write_text('{"noise_doubt": 2, "adaptive": true}')
    arguments = server_arguments(
        parse_mode("tree"), PAIR, ["--dflash2-config", str(tmp_path / "c.json")]
    )
    assert json.loads(arguments[-1]) == {"adaptive": True, "noise_doubt": 2}


@pytest.mark.parametrize("text", ["", "/nowhere/c.json", "{", "[1]"])
def test_a_config_that_cannot_be_read_is_refused(text, tmp_path):
    if text == "[1]":
        (tmp_path / "list.json").write_text(text)
        text = str(tmp_path / "list.json")
    with pytest.raises(BenchError, match="--dflash2-config expects a JSON object"):
        server_arguments(parse_mode("tree"), PAIR, ["--dflash2-config", text])


def test_eagle3_takes_its_own_drafter():
    pair = PAIR._replace(eagle3_drafter="eagle")
    assert "eagle" in server_arguments(parse_mode("eagle3"), pair, [])
    with pytest.raises(BenchError, match="--eagle3-drafter"):
        server_arguments(parse_mode("eagle3"), PAIR, [])


@pytest.mark.parametrize("mode", ["native", "chain", "tree", "tree8", "adaptive"])
def test_a_missing_drafter_is_named(mode):
    with pytest.raises(BenchError, match=f"{mode} needs a drafter: give --drafter"):
        server_arguments(parse_mode(mode), Pair("target", None), [])


@pytest.mark.parametrize("text", ["", "plain,plain", "plain,medusa", "tree8,tree8", "tree08"])
def test_wrong_modes_are_refused(text):
    with pytest.raises(BenchError, match="plain, native, chain, chain<N>, tree, tree<N>, adaptive"):
        parse_modes(text)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("tree1", "the root is a node too, so expected 2 or more"),
        ("native8", "only chain and tree take a number of nodes"),
        ("adaptive16", 'give --mode-args "adaptive=--speculative-num-draft-tokens N"'),
    ],
)
def test_wrong_numbers_of_nodes_are_refused(name, sentence):
    with pytest.raises(BenchError, match=sentence):
        parse_mode(name)


def test_a_mode_is_its_name():
    names = ["plain", "native", "chain", "chain4", "tree", "tree4", "tree16", "adaptive", "ngram"]
    assert [str(parse_mode(name)) for name in names] == names


def test_modes_are_sorted_by_kind_and_then_by_nodes():
    asked = parse_modes("adaptive,tree16,tree8,plain,chain4")
    ordered = sorted(asked, key=lambda mode: mode.rank)
    assert [str(mode) for mode in ordered] == ["plain", "chain4", "tree8", "tree16", "adaptive"]


def test_every_mode_looks_different_in_pictures():
    names = ["plain", "native", "chain", "chain4", "tree", "tree4", "tree8", "tree32", "adaptive"]
    assert len({style(name) for name in names}) == len({style(name).colour for name in names}) == 9


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--url", "tree"], "--url expects MODE=VALUE"),
        (["--url", "medusa=http://x"], "unknown mode 'medusa': expected one of plain"),
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


def test_a_run_that_breaks_leaves_the_report_of_its_whole_rounds(tmp_path):
    # Warm-ups have four requests, greedy; a round has three.
    failing = Behaviour(first_s=0, gap_s=0, fails_with="out of memory", fails_after=4 + 3 + 1)
    with serving(failing) as fake:
        words = ("--url", f"tree={fake.url}", "--modes", "tree", "--prompts", "3", "--rounds", "2")
        more = ("--temperature", "0", "--concurrency", "1", "--out", str(tmp_path))
        result = invoke("bench", *words, *more)
    assert result.exit_code == 1
    assert "The report holds the 1 whole round measured until then." in str(result.exception)
    assert read_run(tmp_path / "run.json").setup.rounds == 1
    assert (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--starts", "3", "--rounds", "2"], "--starts expects no more than the 2 rounds, got 3"),
        (["--starts", "2", "--url", "plain=http://127.0.0.1:1"], "cannot be done with that of"),
        (["--least-prompts", "9"], "--least-prompts is for --prompts-per-user or --mix"),
        (["--mix", "--least-prompts", "99"], "no more than the 16 of --prompts, got 99"),
    ],
)
def test_starts_and_prompts_that_cannot_be_are_refused(words, sentence, tmp_path):
    result = invoke("bench", *words, "--out", str(tmp_path))
    assert result.exit_code == 1
    assert sentence in str(result.exception)


def test_plain_decoding_that_does_not_start_ends_the_run_with_the_reason(tmp_path, monkeypatch):
    server = Server([], log=tmp_path / "server.log")
    server.log.write_text("ValueError: no such model: nowhere")
    monkeypatch.setattr(Server, "start", lambda _: None)
    monkeypatch.setattr(Server, "wait", failing)
    with (
        pytest.raises(ServerError, match="nothing to compare with: no such model: nowhere"),
        running_fleet({PLAIN: server}, {}),
    ):
        pass


def test_a_run_in_which_nothing_starts_but_plain_says_why(tmp_path, monkeypatch):
    server = Server([], log=tmp_path / "server.log")
    server.log.write_text("OSError: no such drafter")
    monkeypatch.setattr(Server, "start", lambda _: None)
    monkeypatch.setattr(Server, "wait", failing)
    with (
        pytest.raises(BenchError, match="could be started:\n  tree: no such drafter"),
        running_fleet({parse_mode("tree"): server}, {PLAIN: "http://x"}),
    ):
        pass


def test_a_port_for_a_server_is_none_that_connections_are_given(monkeypatch):
    outgoing = Path("/proc/sys/net/ipv4/ip_local_port_range")
    lowest = int(outgoing.read_text().split()[0]) if outgoing.exists() else 32_768
    assert {free_port() < lowest for _ in range(50)} == {True}
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(servers, "_PORTS", range(port, port + 1))
        with pytest.raises(ServerError, match="no free TCP port was found"):
            free_port()


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
