"""Closed loop and Poisson arrivals, conversations, seeds."""

import asyncio
import time

import numpy as np
import pytest

from dflash_sglang.bench.errors import BenchError
from dflash_sglang.bench.load import converse, drive
from dflash_sglang.bench.records import Load
from dflash_sglang.bench.stream import Sampling, Stream, open_session, stream_chat
from dflash_sglang.bench.workloads import Prompt
from tests.unit.bench_server import Behaviour, serving

PROMPTS = [
    Prompt(f"p-{i}", "code", [{"role": "user", "content": f"question {i}"}]) for i in range(8)
]


def stream(text: str) -> Stream:
    return Stream(text, 1, 1, "stop", [0.0], [1], 0.0, 0, [])


def drive_fake(url: str, load: Load, seed: int = 0):
    async def run():
        async with open_session() as session:

            async def send(messages, seed):
                return await stream_chat(
                    session, url, "fake", messages, Sampling(0.0, 8, seed, False)
                )

            return await drive(send, PROMPTS, load, seed)

    return asyncio.run(run())


@pytest.mark.parametrize("users", [1, 3, 20])
def test_a_closed_loop_keeps_its_concurrency(users):
    with serving(Behaviour(first_s=0.02, gap_s=0.005)) as fake:
        answers = drive_fake(fake.url, Load(concurrency=users))
    assert fake.most_at_once == min(users, len(PROMPTS))
    assert [answer.prompt for answer in answers] == [prompt.id for prompt in PROMPTS]


def test_a_slow_answer_does_not_hold_up_other_users():
    async def run():
        started = []

        async def send(messages, _):
            started.append(messages[0]["content"])
            await asyncio.sleep(0.3 if messages[0]["content"].endswith(" 0") else 0.01)
            return stream("")

        begin = time.perf_counter()
        await drive(send, PROMPTS, Load(concurrency=2), 0)
        return time.perf_counter() - begin

    assert asyncio.run(run()) < 0.4


def test_poisson_arrivals_are_those_of_the_seed_whatever_the_server_does():
    with serving(Behaviour(first_s=0.2)) as slow, serving(Behaviour(first_s=0.0)) as fast:
        for fake in (slow, fast):
            drive_fake(fake.url, Load(rate=40.0), seed=5)
    gaps = [np.diff(fake.arrivals) for fake in (slow, fast)]
    assert np.abs(gaps[0] - gaps[1]).max() < 0.05
    assert slow.most_at_once > 1


def test_poisson_arrivals_have_the_rate():
    moments = []

    async def run():
        begin = time.perf_counter()

        async def send(_messages, _seed):
            moments.append(time.perf_counter() - begin)
            return stream("")

        await drive(send, PROMPTS * 25, Load(rate=400.0), 1)

    asyncio.run(run())
    assert len(moments) / max(moments) == pytest.approx(400.0, rel=0.25)


def test_every_turn_carries_the_conversation():
    seen = []

    async def send(messages, _):
        seen.append([message["content"] for message in messages])
        return stream(f"answer {len(seen)}")

    prompt = Prompt("p", "chat", [{"role": "user", "content": "one"}], ("two", "three"))
    answers = asyncio.run(converse(send, prompt, 0))
    assert seen[2] == ["one", "answer 1", "two", "answer 2", "three"]
    assert [answer.turn for answer in answers] == [0, 1, 2]


def test_sampling_seeds_differ_by_prompt_turn_and_round_but_not_by_mode():
    def seeds(seed: int) -> list[int]:
        used = []

        async def send(_messages, seed):
            used.append(seed)
            return stream("")

        prompts = [prompt._replace(follow_ups=("more",)) for prompt in PROMPTS]
        asyncio.run(drive(send, prompts, Load(concurrency=1), seed))
        return used

    assert seeds(0) == seeds(0)
    assert len(set(seeds(0) + seeds(1))) == 4 * len(PROMPTS)


def test_a_failed_request_ends_the_round_with_its_sentence():
    with serving(Behaviour(fails_with="lost")) as fake, pytest.raises(BenchError, match="lost"):
        drive_fake(fake.url, Load(concurrency=4))


@pytest.mark.parametrize("fields", [{}, {"concurrency": 1, "rate": 1.0}])
def test_a_load_is_one_of_two(fields):
    with pytest.raises(BenchError, match="either"):
        Load(**fields)
