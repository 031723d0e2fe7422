"""The law test: its error rate, and its power against an engine that accepts too much."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi2_contingency, kstest
from toy_server import ToyServer, random_logits

from dflash_sglang.audit.endpoint import Answer
from dflash_sglang.audit.homogeneity import (
    MOST_BINS,
    compare_samples,
    detectable_bias,
    observations_for,
)
from dflash_sglang.audit.law import (
    BIAS,
    DISTANCE,
    TOKENS,
    Sample,
    audit_law,
    compare_laws,
    default_generations,
)

VOCAB = 64
PROMPTS = 4


def random_law(rng: np.random.Generator) -> np.ndarray:
    """[VOCAB, VOCAB] probabilities of the next token, by the last one."""
    weights = np.exp(rng.normal(size=(VOCAB, VOCAB)) * 1.2)
    return weights / weights.sum(axis=1, keepdims=True)


def generate(
    rng: np.random.Generator,
    target: np.ndarray,
    drafter: np.ndarray,
    bias: float,
    generations: int,
) -> Sample:
    """An engine that delivers, with chance ``bias``, a token of the drafter's law instead."""
    tokens = np.empty((generations, TOKENS), dtype=np.int64)
    tokens[:, 0] = rng.integers(VOCAB, size=generations)
    for step in range(1, TOKENS):
        last = tokens[:, step - 1]
        drawn, drafted = (_draw(rng, law[last]) for law in (target, drafter))
        tokens[:, step] = np.where(rng.random(generations) < bias, drafted, drawn)
    log_probs = np.log(target[tokens[:, :-1], tokens[:, 1:]])
    answers = [
        Answer(ids, "length", TOKENS, [0.0, *values])
        for ids, values in zip(tokens.tolist(), log_probs.tolist(), strict=True)
    ]
    return Sample(answers, PROMPTS)


def _draw(rng: np.random.Generator, probs: np.ndarray) -> np.ndarray:
    cumulative = probs.cumsum(axis=1)
    return (rng.random(len(probs))[:, None] * cumulative[:, -1:] > cumulative).sum(axis=1)


def test_ten_runs_of_a_faithful_engine_pass() -> None:
    rng = np.random.default_rng(0)
    target, drafter = random_law(rng), random_law(rng)
    for _ in range(10):
        samples = [generate(rng, target, drafter, 0.0, 1000) for _ in range(2)]
        assert compare_laws(*samples, own_seeds=False).passes


def test_a_bias_of_two_percent_fails_at_the_default_size() -> None:
    rng = np.random.default_rng(1)
    generations = PROMPTS * -(-default_generations() // PROMPTS)
    for _ in range(3):
        target, drafter = random_law(rng), random_law(rng)
        faithful = generate(rng, target, drafter, 0.0, generations)
        biased = generate(rng, target, drafter, BIAS, generations)
        found = compare_laws(faithful, biased, own_seeds=False)
        assert not found.passes
        assert found.smallest_bias <= 1.1 * BIAS


def test_a_drafter_with_the_targets_own_law_cannot_bias_the_output() -> None:
    rng = np.random.default_rng(2)
    target = random_law(rng)
    faithful = generate(rng, target, target, 0.0, 1000)
    assert compare_laws(faithful, generate(rng, target, target, 0.5, 1000), False).passes


def test_p_values_are_uniform_under_one_law_though_tokens_depend_on_each_other() -> None:
    rng = np.random.default_rng(3)
    strata = np.zeros(300, dtype=np.int64)

    def sticky() -> np.ndarray:
        """Generations that repeat themselves: to plain chi-square, eight times too much data."""
        return np.repeat(rng.integers(6, size=(300, 1)), 8, axis=1)

    p_values = [compare_samples(sticky(), sticky(), strata).p_value for _ in range(200)]
    assert kstest(p_values, "uniform").pvalue > 1e-3


def test_independent_outcomes_give_the_ordinary_two_sample_test() -> None:
    rng = np.random.default_rng(4)
    first, second = rng.integers(5, size=(2, 4000, 1))
    second[:200] = 0
    got = compare_samples(first, second, np.zeros(4000, dtype=np.int64))
    counts = [np.bincount(sample[:, 0], minlength=5) for sample in (first, second)]
    expected = chi2_contingency(np.array(counts))
    assert got.bins == 5
    assert got.freedom == pytest.approx(4, rel=0.02)
    assert np.log(got.p_value) == pytest.approx(np.log(expected.pvalue), rel=0.1)


def test_rare_outcomes_share_a_bin() -> None:
    first = np.array([0] * 500 + [1] * 480 + list(range(2, 22)))[:, None]
    got = compare_samples(first, first.copy(), np.zeros(len(first), dtype=np.int64))
    assert got.bins == 3
    assert got.p_value > 0.99


def test_no_more_bins_than_the_limit_and_the_rest_joins_them() -> None:
    wide = np.repeat(np.arange(2 * MOST_BINS), 20)[:, None]
    got = compare_samples(wide, wide.copy(), np.zeros(len(wide), dtype=np.int64))
    assert got.bins == MOST_BINS + 1
    assert got.observations == (len(wide), len(wide))


def test_answers_that_end_early_are_counted_as_far_as_they_go() -> None:
    answers = [Answer([3, 1], "stop", 1, [-0.1, -0.2]), Answer([3, 2, 2], "length", 1, [-0.1] * 3)]
    sample = Sample(answers * 2, prompts=2)
    assert sample.bigrams(10).tolist()[0][:2] == [31, -1]
    assert sample.surprise().tolist()[0][:2] == [0, -1]
    assert sample.prompts.tolist() == [0, 0, 1, 1]
    # Prompt, place, token.
    assert sample.first_tokens(10)[2].tolist() == [2 * 10 + 3, 3 * 10 + 1]


def test_the_arithmetic_of_size_and_bias_is_one() -> None:
    size = observations_for(0.02, DISTANCE, 16, 1e-3 / 3, 0.99)
    assert detectable_bias(size, DISTANCE, 16, 1e-3 / 3, 0.99) == pytest.approx(0.02, rel=1e-3)
    assert 80_000 < size < 120_000
    # Half the bias takes four times the sample.
    half = observations_for(0.01, DISTANCE, 16, 1e-3 / 3, 0.99)
    assert half == pytest.approx(4 * size, rel=1e-3)


@pytest.mark.parametrize(("bias", "passes"), [(0.0, True), (0.2, False)])
def test_servers_are_asked_and_compared(bias: float, passes: bool) -> None:
    logits, draft = random_logits(0), random_logits(5)
    baseline = ToyServer(logits, seed=1)
    candidate = ToyServer(logits, draft=draft, bias=bias, seed=2)
    finished: list[int] = []
    found = audit_law(baseline, candidate, [[1], [2]], 512, finished.append)
    assert found.passes is passes
    assert found.generations == sum(finished) == 512
    assert not found.own_seeds and "sampling_seed" not in baseline.asked[0].sampling


def test_deterministic_servers_are_sampled_with_a_seed_for_every_request() -> None:
    servers = [ToyServer(random_logits(0), deterministic=True) for _ in range(2)]
    found = audit_law(servers[0], servers[1], [[1], [2]], 256)
    seeds = [question.sampling["sampling_seed"] for side in servers for question in side.asked]
    assert found.own_seeds and found.passes
    assert len(set(seeds)) == 512
