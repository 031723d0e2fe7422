"""The report as text, JSON and a page, and the command's exit code."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from dflash_sglang import cli
from dflash_sglang.audit import run
from dflash_sglang.audit.conditions import GREEDY, Condition
from dflash_sglang.audit.endpoint import AuditError, Endpoint
from dflash_sglang.audit.homogeneity import Homogeneity
from dflash_sglang.audit.identity import Comparison, Difference
from dflash_sglang.audit.law import LawAudit, LawTest
from dflash_sglang.audit.page import render
from dflash_sglang.audit.prompts import prompts
from dflash_sglang.audit.report import Report, ServerFacts
from dflash_sglang.audit.scope import Level, Scope
from dflash_sglang.audit.tracing import DEFECT, TIE, Cause, Judgement

PLAIN = ServerFacts("http://a", "m<odel>", "float32", "cpu", None, None, True, "0.5.23")
SPECULATIVE = ServerFacts("http://b", "m<odel>", "float32", "cpu", "DFLASH2", 16, True, "0.5.23")
PROMPTS = ("Is 1 < 2 & 3 > 2?", "Tell me a story.")


def comparison(*verdicts: Judgement) -> Comparison:
    differences = tuple(
        Difference(index, 3, 7, 9, Cause(verdict, 1e-6, -2e-6, "because"))
        for index, verdict in enumerate(verdicts)
    )
    return Comparison(Condition(0.7, top_k=20), 8, 2, 96, 3.25, differences)


def law(p_value: float) -> LawAudit:
    test = LawTest("surprise", Homogeneity(9, (500, 500), 31.5, 8.0, p_value), 3e-4)
    return LawAudit(1000, False, 1e-3, 0.018, (test,))


def report(*comparisons: Comparison, law: LawAudit | None = None) -> Report:
    return Report(PLAIN, SPECULATIVE, 1e-4, PROMPTS, comparisons, law, ("seeds; nobody asked.",))


def text_of(found: Report) -> str:
    console = Console(file=io.StringIO(), width=200)
    found.print_to(console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("found", "defects", "verdict"),
    [
        (report(comparison()), 0, "Lossless: no difference was found."),
        (report(comparison(TIE)), 0, "Lossless: 1 difference, each a tie within rounding."),
        (report(comparison(TIE, DEFECT)), 1, "DEFECT: 1 finding that"),
        (report(law=law(1e-9)), 1, "DEFECT: 1 finding that"),
        (report(law=law(0.2)), 0, "Lossless"),
    ],
    ids=["identical", "tie", "defect", "law-fails", "law-passes"],
)
def test_the_verdict_counts_defects_only(found: Report, defects: int, verdict: str) -> None:
    assert found.defects == defects
    assert found.verdict.startswith(verdict)
    assert verdict in text_of(found)
    assert json.loads(found.as_json())["verdict"] == found.verdict


def test_text_shows_every_number_and_both_gaps() -> None:
    text = text_of(report(comparison(TIE, DEFECT), law=law(1e-9)))
    assert "temperature 0.7, top-k 20" in text and "0/2" in text and "3.25" in text
    assert "baseline 7, candidate 9; logit gap +1e-06 as the baseline has it, -2e-06" in text
    assert text.index("- defect: prompt 1") < text.index("- tie within rounding: prompt 0")
    assert "1000 generations a server, no seeds" in text and "bias of 1.8% on" in text
    assert "Not checked: seeds; nobody asked." in text


def test_json_holds_causes_and_counts() -> None:
    fields = json.loads(report(comparison(TIE), law=law(0.2)).as_json())
    (entry,) = fields["comparisons"]
    assert (entry["label"], entry["identical"], entry["ties"]) == (
        "temperature 0.7, top-k 20",
        1,
        1,
    )
    assert entry["differences"][0]["cause"]["candidate_gap"] == -2e-6
    assert fields["law"]["tests"][0]["result"]["p_value"] == 0.2
    assert fields["candidate"]["algorithm"] == "DFLASH2"


def test_the_page_stands_alone_and_escapes_what_it_shows() -> None:
    page = render(report(comparison(TIE, DEFECT), law=law(1e-9)))
    assert not re.search(r"(src|href)=|@import|url\(", page)
    assert "m&lt;odel&gt;" in page and "Is 1 &lt; 2 &amp; 3 &gt; 2?" in page
    assert "<odel>" not in page
    assert page.count("<li class=bad>") == 1 and "FAIL" in page


def test_a_page_without_differences_has_no_list_of_them() -> None:
    page = render(report(comparison()))
    assert "Differences and their causes" not in page and "The same law" not in page


@pytest.mark.parametrize(("verdict", "code"), [(TIE, 0), (DEFECT, 1)])
def test_the_exit_code_is_1_on_a_defect(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verdict: Judgement, code: int
) -> None:
    monkeypatch.setattr(run, "audit", lambda *_: report(comparison(verdict)))
    files = ["--json", str(tmp_path / "a.json"), "--html", str(tmp_path / "a.html")]
    assert CliRunner().invoke(cli.app, ["audit", *files]).exit_code == code
    assert json.loads((tmp_path / "a.json").read_text())["defects"] == code
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")


def server_with(url: str, **info: object) -> Endpoint:
    server = Endpoint(url, "baseline")
    server.info = info
    return server


def test_servers_of_different_targets_are_not_compared() -> None:
    ours = server_with("http://a", model_path="x", dtype="float32")
    theirs = server_with("http://b", model_path="y", dtype="float32")
    with pytest.raises(AuditError, match="same model path: the baseline at http://a has 'x'"):
        run.check_comparable(ours, theirs)


@pytest.mark.parametrize(
    ("sides", "sentence"),
    [
        (run.Sides(baseline="http://a"), "give both"),
        (run.Sides("http://a", "http://b", drafter="d"), "no --drafter .* got d"),
        (run.Sides("http://a", "http://b", arguments=["--tp", "2"]), "got --tp 2"),
        (run.Sides(target="t"), "give both --target and --drafter"),
    ],
)
def test_sides_that_do_not_make_a_pair_are_refused(sides: run.Sides, sentence: str) -> None:
    with pytest.raises(AuditError, match=sentence):
        run.audit(sides, Scope(), Console())


def test_seeds_are_skipped_by_name_where_a_server_ignores_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    info = {"model_path": "x", "dtype": "float32", "enable_deterministic_inference": False}
    monkeypatch.setattr(run, "Endpoint", lambda url, _role: server_with(url, **info))
    scope = Scope(levels=(Level.SEEDED,))
    found = run.audit_running("http://a", "http://b", scope, Console(file=io.StringIO()))
    assert found.comparisons == () and "--enable-deterministic-inference" in found.skipped[0]


def test_the_built_in_prompts_are_distinct_and_stable() -> None:
    assert len(set(prompts(200))) == 200
    assert prompts(200)[:50] == prompts(50)


def test_labels_name_what_is_set() -> None:
    assert GREEDY.label == "greedy"
    assert Condition(1.0, top_p=0.9).label == "temperature 1, top-p 0.9"
