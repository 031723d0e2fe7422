"""The article's numbers come out of the formulas to three digits; its contradictions do not."""

import pytest

from dflash_sglang.bench import projection, published, roofline
from dflash_sglang.bench.devices import DEVICES, choose_device
from dflash_sglang.bench.errors import BenchError, ProvenanceError
from dflash_sglang.bench.projection import Question
from dflash_sglang.bench.provenance import Projected
from dflash_sglang.bench.tables import Table, markdown

B70 = DEVICES["arc-pro-b70"]
STEP = {"T_draft": 3.2, "T_verify": 64.1, "tau": 4.15}


@pytest.mark.parametrize(
    ("figure", "stated", "last_digit"),
    [
        (roofline.PREFILL_INTENSITY(N=2048, b=2), 2048, 1),
        (roofline.DECODE_INTENSITY(n=1, b=0.5), 4.0, 0.1),
        (roofline.SATURATION_INTENSITY(F=B70.compute, W=B70.bandwidth), 213.8, 0.1),
        (roofline.BASELINE_RATE(W=B70.bandwidth, M=38.5e9), 15.79, 0.01),
        (roofline.TOKEN_MS(**STEP), 16.22, 0.01),
        (roofline.RATE(**STEP), 61.6, 0.1),
        (roofline.SPEEDUP(T_plain=1000 / 15.79, **STEP), 3.90, 0.01),
    ],
)
def test_the_articles_numbers_are_reproduced(figure, stated, last_digit):
    # The article cuts some of its numbers off and rounds others.
    assert figure.value == pytest.approx(stated, abs=last_digit)
    assert isinstance(figure.provenance, Projected)


def test_the_command_reproduces_them_too():
    table = projection.project(B70, Question(38.5e9, 0.5, 4.15, 3.2, 64.1, 6))
    values = {row.labels[0]: row.figures[0].value for row in table.rows}
    assert values["plain decoding"] == pytest.approx(15.79, abs=0.01)
    assert values["time of a token"] == pytest.approx(16.22, abs=0.01)
    assert values["speedup"] == pytest.approx(3.90, abs=0.01)


def test_a_projection_knows_its_formula_and_inputs():
    provenance = roofline.RATE(**STEP).provenance
    assert provenance.inputs == STEP
    assert "tau" in provenance.formula


def test_few_tokens_are_bound_by_bandwidth_and_many_by_compute():
    def step(tokens: int) -> float:
        return roofline.STEP_MS(M=38.5e9, W=608e9, P=77e9, n=tokens, F=130e12).value

    assert step(1) == step(32)
    # Compute takes over where the intensity 2 n / b reaches saturation.
    crossing = 213.8 * 0.5 / 2
    assert step(int(crossing) - 1) == step(1)
    assert step(2 * int(crossing) + 2) == pytest.approx(2 * step(1), rel=0.02)


def test_tau_of_a_chain_is_the_sum_of_its_chances():
    assert roofline.expected_tau([[0.9], [0.8], [0.5]], 3, 1) == pytest.approx(
        1 + 0.9 + 0.9 * 0.8 + 0.9 * 0.8 * 0.5
    )


def test_a_leaf_is_accepted_but_leads_nowhere():
    acceptance = [[0.5, 0.8], [0.5, 0.8]]
    assert roofline.expected_tau(acceptance, 2, 2) == pytest.approx(1 + 0.8 + 0.5 * 0.8)


def test_free_verification_wants_the_deepest_and_widest():
    acceptance = [[0.5, 0.8]] * 4
    best = roofline.best_window(acceptance, roofline.linear_cost(10.0, 0.0), 1.0)
    assert (best.depth, best.width) == (4, 2)


def test_dear_verification_wants_no_speculation():
    best = roofline.best_window([[0.5]], roofline.linear_cost(1.0, 10.0), 1.0)
    assert (best.depth, best.tau, best.nodes) == (0, 1.0, 1)


def test_the_best_window_is_the_best_of_all():
    acceptance = [[0.8, 0.9, 0.95], [0.6, 0.8, 0.9], [0.3, 0.5, 0.6]]
    cost = roofline.linear_cost(10.0, 0.7)
    best = roofline.best_window(acceptance, cost, 2.0)
    rates = {
        (depth, width): 1000
        * roofline.expected_tau(acceptance, depth, width)
        / (2.0 + cost(1 + depth * width))
        for depth in (1, 2, 3)
        for width in (1, 2, 3)
    }
    assert best.rate == pytest.approx(max(rates.values()))
    assert rates[best.depth, best.width] == pytest.approx(best.rate)


@pytest.mark.parametrize("acceptance", [[], [[]], [[1.2]], [[0.5, 0.4]], [[0.5], [0.4, 0.5]]])
def test_impossible_curves_are_refused(acceptance):
    with pytest.raises(BenchError):
        roofline.best_window(acceptance, roofline.linear_cost(1, 0), 0)


@pytest.mark.parametrize(
    "change", [{"tau": 0.5}, {"weights": 0.0}, {"draft_ms": -1.0}, {"verify_tokens": 0}]
)
def test_impossible_questions_are_refused(change):
    question = Question(38.5e9, 0.5, 4.15, 3.2, None, 6)._replace(**change)
    with pytest.raises(BenchError):
        projection.project(B70, question)


def test_windows_are_projected_for_each_width():
    table = projection.windows(
        B70,
        Question(38.5e9, 0.5, 1.0, 3.2, None, 6),
        projection.parse_acceptance("0.9/0.95,0.8/0.9"),
    )
    rates = [row.figures[0].value for row in table.rows]
    assert len(rates) == 2 and rates[1] > rates[0]


def test_malformed_acceptance_is_refused():
    with pytest.raises(BenchError, match=r"0\.9"):
        projection.parse_acceptance("0.9;0.8")


def test_unknown_devices_and_impossible_figures_are_refused():
    with pytest.raises(BenchError, match="arc-pro-b70"):
        choose_device("abacus", None, None)
    with pytest.raises(BenchError, match="above 0"):
        choose_device("h200", 0.0, None)
    assert choose_device("h200", 1000.0, None).bandwidth == 1e12


def test_published_speedups_are_those_of_the_articles_own_column():
    stated = (2.77, 3.45, 2.78, 2.75, 2.97)
    for entry, speedup in zip(published.SERVING, stated, strict=True):
        assert entry.dflash2 / entry.plain == pytest.approx(speedup, abs=0.006)


def test_published_and_projected_figures_do_not_share_a_table_unseen():
    mine = projection.project(B70, Question(38.5e9, 0.5, 4.15, 3.2, 64.1, 6)).rows[3]
    theirs = published.accept_length_table().rows[0]
    mixed = Table(
        ("what",),
        ("value",),
        [row._replace(labels=row.labels[:1], figures=row.figures[:1]) for row in (mine, theirs)],
    )
    with pytest.raises(ProvenanceError):
        markdown(mixed)
    assert "published" in markdown(mixed, provenance=True)


def test_the_articles_own_two_kinds_stand_in_separate_rows():
    text = markdown(published.serving_table())
    assert "52.4" in text and "34.8" in text
