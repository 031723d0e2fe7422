"""A run's file is read again, also one of an older version; others get one clear sentence."""

import json

import pytest

from dflash_sglang.bench import report
from dflash_sglang.bench.errors import BenchError
from dflash_sglang.bench.records import FORMAT, read_run, write_run
from tests.unit.bench_runs import plain_and_tree

# What the first version of format 1 did not write.
LATER = {"setup": ("prompts_per_user", "keeps_cache"), "round": ("widths",)}


@pytest.fixture
def written(tmp_path):
    """A run's file, and the same as JSON."""
    path = tmp_path / "run.json"
    write_run(plain_and_tree(), path)
    return path, json.loads(path.read_text())


def test_a_run_survives_its_file(written):
    assert read_run(written[0]) == plain_and_tree()


def test_a_run_of_the_first_version_is_read_and_reported(written):
    path, raw = written
    for name in LATER["setup"]:
        del raw["setup"][name]
    for cell in raw["cells"]:
        for round_ in cell["rounds"]:
            for name in LATER["round"]:
                del round_[name]
    path.write_text(json.dumps(raw))
    run = read_run(path)
    assert run == plain_and_tree()
    assert "## Throughput" in report.as_markdown(run)


def test_fields_of_a_later_version_are_passed_over(written):
    path, raw = written
    path.write_text(json.dumps(raw | {"weather": "fair"}))
    assert read_run(path) == plain_and_tree()


def test_a_run_that_lost_its_provenance_cannot_be_read(written):
    path, raw = written
    del raw["measured"]
    path.write_text(json.dumps(raw))
    with pytest.raises(BenchError, match="measured"):
        read_run(path)


@pytest.mark.parametrize("version", [FORMAT - 1, FORMAT + 1])
def test_another_format_is_named_whatever_else_it_holds(written, version):
    path, _ = written
    path.write_text(json.dumps({"format": version, "results": []}))
    with pytest.raises(BenchError) as caught:
        read_run(path)
    assert str(caught.value) == (
        f"{path} has format {version}, this version reads format {FORMAT}."
    )


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', "not JSON", '{"format": "1"}'])
def test_a_file_of_something_else_is_refused_in_one_sentence(text, tmp_path):
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(BenchError, match=r"run\.json is not the run\.json of a bench run: .*\.$"):
        read_run(path)


def test_a_missing_file_is_named_with_what_was_expected(tmp_path):
    with pytest.raises(BenchError, match=r"cannot read .*gone\.json: .*; expected the run\.json"):
        read_run(tmp_path / "gone.json")
