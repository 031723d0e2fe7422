"""The client's clock: what a server did at known moments is what the figures say."""

import asyncio

import pytest

from dflash_sglang.bench.errors import BenchError
from dflash_sglang.bench.stream import Sampling, model_name, open_session, stream_chat
from tests.unit.bench_server import Behaviour, serving

SAMPLING = Sampling(temperature=0.0, max_tokens=6, seed=1, ignore_eos=False)
MESSAGES = [{"role": "user", "content": "hello"}]
LATE = 0.04  # seconds that a loaded machine may add to a wait


def ask(url: str):
    async def request():
        async with open_session() as session:
            return await stream_chat(session, url, "fake", MESSAGES, SAMPLING)

    return asyncio.run(request())


def test_chunks_arrive_when_they_were_sent():
    with serving(Behaviour(first_s=0.10, gap_s=0.05, chunks=(1, 3, 2))) as fake:
        stream = ask(fake.url)
    assert stream.chunk_tokens == [1, 3, 2]
    for arrived, sent in zip(stream.chunk_s, (0.10, 0.15, 0.20), strict=True):
        assert sent <= arrived < sent + LATE
    assert stream.total_s >= stream.chunk_s[-1]
    assert stream.tokens == 6


def test_speculation_is_read_from_the_servers_extension():
    with serving(Behaviour(histogram=(2, 0, 1))) as fake:
        stream = ask(fake.url)
    assert (stream.verify_steps, stream.accept_histogram) == (3, [2, 0, 1])


def test_a_server_without_speculation_has_no_steps():
    with serving(Behaviour(histogram=())) as fake:
        stream = ask(fake.url)
    assert (stream.verify_steps, stream.accept_histogram) == (0, [])


def test_the_request_asks_for_counts_and_details():
    with serving(Behaviour()) as fake:
        ask(fake.url)
    body = fake.bodies[0]
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert body["return_spec_tokens_details"] is True
    assert (body["temperature"], body["seed"], body["max_tokens"]) == (0.0, 1, 6)


def test_connections_are_kept_but_not_until_a_server_gives_them_up():
    async def requests(pauses):
        async with open_session() as session:
            for pause in pauses:
                await asyncio.sleep(pause)
                await stream_chat(session, fake.url, "fake", MESSAGES, SAMPLING)

    with serving(Behaviour(first_s=0.0, gap_s=0.0)) as fake:
        asyncio.run(requests([0.0, 0.0]))
        assert len(fake.connections) == 1
        asyncio.run(requests([0.0, 1.2]))
        assert len(fake.connections) == 3


def test_equal_texts_have_equal_digests():
    with serving(Behaviour(chunks=(1, 2))) as fake:
        digests = {ask(fake.url).digest, ask(fake.url).digest}
    with serving(Behaviour(chunks=(1, 1, 1))) as fake:
        digests.add(ask(fake.url).digest)
    with serving(Behaviour(chunks=(1, 3))) as fake:
        assert ask(fake.url).digest not in digests
    assert len(digests) == 1


def test_an_uncounted_answer_is_refused():
    with serving(Behaviour(counts_tokens=False)) as fake, pytest.raises(BenchError, match="usage"):
        ask(fake.url)


def test_a_failure_in_the_middle_is_not_an_answer():
    with (
        serving(Behaviour(fails_with="out of memory")) as fake,
        pytest.raises(BenchError, match="out of memory"),
    ):
        ask(fake.url)


def test_a_dead_url_says_what_to_do():
    async def request():
        async with open_session() as session:
            return await model_name(session, "http://127.0.0.1:9")

    with pytest.raises(BenchError, match="dflash2 serve"):
        asyncio.run(request())
