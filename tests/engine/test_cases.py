"""Situations that broke other implementations of block drafting, on a real server."""

import threading
import time

import httpx
import pytest

from dflash_sglang.bench.server import Server
from tests.engine.checkpoints import MASK_TOKEN, VOCAB
from tests.engine.traffic import generate, generate_all, make_prompts

pytestmark = pytest.mark.server

PROMPT = [5, 9, 2, 44, 17, 8]


def test_the_mask_token_is_an_ordinary_token_when_the_target_emits_it(trio):
    forced = {"logit_bias": {str(MASK_TOKEN): 100.0}}
    got = generate(trio.tree, PROMPT, 24, **forced)
    assert got.token_ids == [MASK_TOKEN] * 24
    assert got.meta["completion_tokens"] == 24


@pytest.mark.parametrize("place", [1, 2, 5, 13])
@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_a_stop_token_inside_an_accepted_path_ends_the_output(trio, shape, place):
    text = generate(trio.plain, PROMPT, 32).token_ids
    stop = text[place]
    end = text.index(stop) + 1
    got = generate(getattr(trio, shape), PROMPT, 32, stop_token_ids=[stop], ignore_eos=False)
    assert got.token_ids == text[:end]
    assert got.meta["finish_reason"]["type"] == "stop"
    assert got.meta["completion_tokens"] == end
    # What was accepted behind the stop must not have reached the radix cache as if generated.
    longer = PROMPT + text[:end] + [3, 1, 4]
    assert (
        generate(getattr(trio, shape), longer, 16).token_ids
        == generate(trio.plain, longer, 16).token_ids
    )


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 11])
def test_exactly_as_many_tokens_as_asked_for(trio, limit):
    """On so many texts that paths of every length are accepted, and cut off, by some."""
    texts = make_prompts(24, VOCAB - 1, longest=40, seed=limit)
    expected = generate_all(trio.plain, texts, limit, concurrency=6)
    got = generate_all(trio.tree, texts, limit, concurrency=6)
    assert [answer.token_ids for answer in got] == [answer.token_ids for answer in expected]
    for answer in got:
        assert len(answer.token_ids) == answer.meta["completion_tokens"] == limit
        assert answer.meta["finish_reason"]["type"] == "length"


def test_no_request_sees_the_state_of_an_earlier_one(trio):
    prompts = make_prompts(200, VOCAB - 1, longest=80, seed=3)
    expected = generate_all(trio.plain, prompts, 8, concurrency=4)
    got = generate_all(trio.tree, prompts, 8, concurrency=6)
    assert [answer.token_ids for answer in got] == [answer.token_ids for answer in expected]


def test_a_cached_prefix_is_cached_for_the_drafter_too(trio):
    prompt = make_prompts(1, VOCAB - 1, longest=300, seed=11)[0]
    prompt = (prompt * 300)[:300]
    first = generate(trio.tree, prompt, 64)
    again = generate(trio.tree, prompt, 64)
    assert again.meta["cached_tokens"] > 250
    assert again.token_ids == first.token_ids
    # The same drafts are accepted at the same places: the drafter's context is the same.
    assert again.meta["spec_verify_ct"] == first.meta["spec_verify_ct"]

    half = [*prompt[:150], *range(2, 42)]
    got = generate(trio.tree, half, 64)
    assert got.meta["cached_tokens"] >= 140
    assert got.token_ids == generate(trio.plain, half, 64).token_ids
    httpx.post(f"{trio.tree.url}/flush_cache", params={"timeout": 60}).raise_for_status()
    uncached = generate(trio.tree, half, 64)
    assert uncached.meta["cached_tokens"] == 0
    assert uncached.meta["spec_verify_ct"] == got.meta["spec_verify_ct"]


def test_crowded_batches_with_chunked_prefill_keep_their_tokens(trio, crowded):
    """Prefill chunks beside running requests, and requests retracted and resumed for want of KV."""
    prompts = make_prompts(16, VOCAB - 1, longest=250, seed=5)
    expected = generate_all(trio.plain, prompts, 96, concurrency=4)
    got = generate_all(crowded, prompts, 96, concurrency=12)
    assert [answer.token_ids for answer in got] == [answer.token_ids for answer in expected]
    log = crowded.log.read_text(errors="replace")
    assert "Retract" in log or "retract" in log, "the server was not crowded enough to retract"
    assert_pool_is_whole(crowded)


def test_a_client_that_leaves_frees_its_slots_and_disturbs_nobody(trio, crowded):
    expected = generate(trio.plain, PROMPT, 200).token_ids
    with httpx.Client(timeout=60) as client:
        stayed: list[list[int]] = []
        stays = threading.Thread(
            target=lambda: stayed.append(generate(crowded, PROMPT, 200).token_ids)
        )
        stays.start()
        body = {
            "input_ids": [4, 4, 4],
            "sampling_params": {"max_new_tokens": 1000, "temperature": 0, "ignore_eos": True},
            "stream": True,
        }
        with client.stream("POST", f"{crowded.url}/generate", json=body) as stream:
            next(stream.iter_lines())
        stays.join(timeout=120)
    assert stayed == [expected]
    assert_pool_is_whole(crowded)


def assert_pool_is_whole(server: Server) -> None:
    """SGLang compares its pools whenever it is idle and dies of a leak; give it the time to."""
    time.sleep(2)
    assert generate(server, [1], 2).token_ids
    assert "leak detected" not in server.log.read_text(errors="replace")
