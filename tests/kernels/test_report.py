"""``dflash2 kernels`` says what is right and what is not."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from dflash_sglang import cli
from dflash_sglang.kernels import examples, library, report

SMALL = examples.Sizes(bs=2, positions=3, candidates=4, nodes=9, vocabulary=101, hidden=32, rank=8)


def cpu_backend() -> report.Backend:
    library.load()
    names = frozenset(library.operator_names())
    return report.Backend("cpu", lambda name, *call: library.operator(name)(*call), names, "")


def test_every_example_equals_its_reference() -> None:
    outcomes = report.check(cpu_backend(), SMALL)
    assert {outcome.operator for outcome in outcomes} == set(examples.calls(SMALL))
    assert all(outcome.is_right for outcome in outcomes)


@pytest.mark.parametrize("operator", ["walk_tree", "pair_scores"])
def test_a_wrong_kernel_is_found(operator: str) -> None:
    right = cpu_backend()

    def broken(name: str, *call):
        result = right.run(name, *call)
        if name != operator:
            return result
        return result + 1e-3 if name == "pair_scores" else (result[0] + 1, *result[1:])

    wrong = {o.operator for o in report.check(right._replace(run=broken), SMALL) if not o.is_right}
    assert wrong == {operator}


def test_the_list_names_operators_and_missing_backends(monkeypatch) -> None:
    absent = report.Backend("cuda", None, frozenset({"build_tree"}), "this machine has no card")
    monkeypatch.setattr(report, "backends", lambda: [cpu_backend(), absent])
    shown = CliRunner().invoke(cli.app, ["kernels", "list"])
    assert shown.exit_code == 0
    assert "build_tree" in shown.output and "built" in shown.output
    assert "cuda: this machine has no card" in shown.output


def test_check_fails_with_the_first_wrong_kernel(monkeypatch) -> None:
    right = cpu_backend()
    wrong = right._replace(
        run=lambda name, *call: tuple(part + 1 for part in report._tensors(right.run(name, *call))),
        operators=frozenset({"commit_path"}),
    )
    monkeypatch.setattr(report, "backends", lambda: [wrong])
    assert CliRunner().invoke(cli.app, ["kernels", "check"]).exit_code == 1
