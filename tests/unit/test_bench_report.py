"""A report is complete, needs nothing beside it, and says where everything comes from."""

import html.parser
import struct

import msgspec
import pytest
from typer.testing import CliRunner

from dflash_sglang import cli
from dflash_sglang.bench import charts, report
from dflash_sglang.bench.figures import Entry, entries
from dflash_sglang.bench.records import Cell, PhaseUse, read_run, write_run
from tests.unit.bench_runs import plain_and_tree


@pytest.fixture(scope="module")
def run():
    return plain_and_tree()


@pytest.fixture(scope="module")
def folder(run, tmp_path_factory):
    """The report of a run, drawn again from its file."""
    path = tmp_path_factory.mktemp("report")
    write_run(run, path / "before.json")
    drawn = CliRunner().invoke(
        cli.app, ["bench", "report", str(path / "before.json"), "--out", str(path / "out")]
    )
    assert drawn.exit_code == 0
    return path / "out"


class Page(html.parser.HTMLParser):
    """Collects what a page refers to and whether its elements are closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.references: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)
        self.references += [value for name, value in attrs if name in ("src", "href") and value]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_the_page_is_whole_and_alone(folder):
    page = Page((folder / "report.html").read_text())
    assert page.open == []
    assert len(page.references) == len(list(folder.glob("*.png"))) == 6
    assert all(reference.startswith("data:image/png;base64,") for reference in page.references)


def test_the_page_says_where_its_figures_come_from(folder, run):
    page = Page((folder / "report.html").read_text())
    for fact in (run.measured.machine, run.measured.command, run.measured.date, "sglang 0.5.23"):
        assert fact in page.text


def test_a_refused_mode_is_named_with_its_reason(folder):
    for name in ("report.html", "report.md"):
        assert "not supported on device" in (folder / name).read_text()


def test_pictures_are_png_of_a_legible_size(folder):
    for picture in folder.glob("*.png"):
        head = picture.read_bytes()[:24]
        width, height = struct.unpack(">II", head[16:24])
        assert head.startswith(b"\x89PNG") and width >= 600 and height >= 400


def test_every_figure_is_in_the_json_with_its_provenance(folder, run):
    found = msgspec.json.decode((folder / "figures.json").read_bytes(), type=list[Entry])
    assert found == list(entries(run))
    assert all(entry.figure.provenance == run.measured for entry in found)
    assert {"tokens_per_s", "speedup", "accept_length", "itl_p99"} <= {e.metric for e in found}


def test_the_run_itself_is_kept(folder, run):
    assert read_run(folder / "run.json") == run
    assert (folder / "report.md").read_text() == report.as_markdown(run)


def test_markdown_has_a_row_for_every_mode_and_case(run):
    text = report.as_markdown(run)
    throughput = text.split("## Latency")[0]
    assert sum(line.startswith("| builtin") for line in throughput.splitlines()) == 8


@pytest.mark.parametrize(("keeps", "said"), [(False, "on an empty prefix"), (True, "on a kept")])
def test_the_first_token_is_said_to_come_from_the_prefix_cache_that_there_was(run, keeps, said):
    setup = msgspec.structs.replace(run.setup, keeps_cache=keeps)
    assert said in report.as_markdown(msgspec.structs.replace(run, setup=setup))


def test_where_a_step_went_is_told_where_the_server_timed_it(run):
    assert "Time budget" not in report.as_markdown(run)
    use = PhaseUse(steps=4, ms={"draft": 8.0, "verify": 20.0, "commit": 2.0})

    def timed(cell: Cell) -> Cell:
        rounds = [msgspec.structs.replace(round_, phases=use) for round_ in cell.rounds]
        return msgspec.structs.replace(cell, rounds=rounds) if cell.mode == "tree" else cell

    cells = [timed(cell) for cell in run.cells]
    known = msgspec.structs.replace(run, cells=cells)
    budget = report.as_markdown(known).split("## Time budget of a step")[1]
    tree = next(line for line in budget.splitlines() if "| tree |" in line)
    phases = [text.split(" ±")[0].strip() for text in tree.split("|")[6:9]]
    assert phases == ["2.00", "5.00", "0.5"]
    canvas = charts.step_budget(known)
    legend = {text.get_text() for text in canvas.legends[0].get_texts()}
    assert legend == {"draft", "verify", "commit", "everything else"}


def test_pictures_without_figures_are_left_out(run):
    alone = msgspec.structs.replace(
        run, cells=[cell for cell in run.cells if cell.mode == "plain"], refused={}
    )
    assert charts.accept_histogram(alone) is None
    assert charts.accept_by_position(alone) is None
    assert charts.speedup_by_category(alone) is None
    assert charts.pareto(alone) is not None
    assert "Not measured" not in report.as_page(alone, {})


def test_names_in_a_run_cannot_inject_markup(run):
    setup = msgspec.structs.replace(run.setup, target="<script>alert(1)</script>")
    page = report.as_page(msgspec.structs.replace(run, setup=setup), {})
    assert "<script>" not in page
