"""Sampled requests: a seed decides the tokens, whatever is speculated beside it."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.engine.checkpoints import VOCAB
from tests.engine.traffic import generate, generate_all, make_prompts

pytestmark = pytest.mark.server

PROMPT = [7, 3, 9, 20, 31]
TRUNCATIONS = [{}, {"top_k": 12}, {"top_p": 0.8}, {"top_k": 20, "top_p": 0.9}]


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 1.5])
@pytest.mark.parametrize("truncation", TRUNCATIONS, ids=str)
def test_a_seed_gives_the_tokens_of_plain_decoding(seeded, temperature, truncation):
    prompts = make_prompts(6, VOCAB - 1, longest=60)
    sampling = {"temperature": temperature, "sampling_seed": 1234, **truncation}
    expected = generate_all(seeded.plain, prompts, 48, concurrency=1, **sampling)
    got = generate_all(seeded.tree, prompts, 48, concurrency=1, **sampling)
    assert [answer.token_ids for answer in got] == [answer.token_ids for answer in expected]


def test_a_request_depends_on_its_own_seed_only(seeded):
    alone = generate(seeded.tree, PROMPT, 48, temperature=1.0, sampling_seed=5).token_ids
    together = {
        seed: answer.token_ids
        for seed in (4, 5, 6)
        for answer in generate_all(
            seeded.tree, [PROMPT] * 3, 48, concurrency=3, temperature=1.0, sampling_seed=seed
        )
    }
    assert together[5] == alone
    assert len({tuple(tokens) for tokens in together.values()}) == 3


def test_unseeded_requests_of_one_batch_differ(trio):
    answers = generate_all(trio.tree, [PROMPT] * 4, 48, concurrency=4, temperature=1.0)
    assert len({tuple(answer.token_ids) for answer in answers}) == 4


def test_greedy_and_sampled_requests_share_a_batch(trio):
    greedy = generate(trio.tree, PROMPT, 48).token_ids
    with ThreadPoolExecutor(4) as pool:
        temperatures = (0.0, 1.0, 0.0, 1.0)
        answers = list(
            pool.map(lambda heat: generate(trio.tree, PROMPT, 48, temperature=heat), temperatures)
        )
    assert answers[0].token_ids == answers[2].token_ids == greedy
    assert answers[1].token_ids != answers[3].token_ids
