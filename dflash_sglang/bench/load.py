"""Requests in a closed loop or at random arrival times, over conversations."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

from dflash_sglang.bench.client import Message
from dflash_sglang.bench.records import Answer, Load
from dflash_sglang.bench.stream import Stream
from dflash_sglang.bench.workloads import Prompt

Send = Callable[[list[Message], int], Awaitable[Stream]]
"""Sends one chat request with a sampling seed."""


async def drive(send: Send, prompts: Sequence[Prompt], load: Load, seed: int) -> list[Answer]:
    """All prompts under a load; the answers in the order of the prompts.

    Args:
        seed: of the arrival times and of the sampling; both are then the same for every mode.
    """
    try:
        if load.concurrency is not None:
            return await _closed_loop(send, prompts, load.concurrency, seed)
        assert load.rate is not None
        return await _poisson(send, prompts, load.rate, seed)
    except ExceptionGroup as failures:
        # The first request that failed made the group cancel the others.
        raise failures.exceptions[0] from None


async def _closed_loop(
    send: Send, prompts: Sequence[Prompt], concurrency: int, seed: int
) -> list[Answer]:
    """``concurrency`` users, each of whom asks again as soon as they were answered."""
    waiting = iter(enumerate(prompts))
    answers: dict[int, list[Answer]] = {}

    async def user() -> None:
        for index, prompt in waiting:
            answers[index] = await converse(send, prompt, seed)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, len(prompts))):
            group.create_task(user())
    return [answer for index in sorted(answers) for answer in answers[index]]


async def _poisson(send: Send, prompts: Sequence[Prompt], rate: float, seed: int) -> list[Answer]:
    """Users who come at independent moments, ``rate`` a second on average, whatever the load."""
    rng = random.Random(seed)

    async def user(prompt: Prompt, moment: float) -> list[Answer]:
        await asyncio.sleep(moment)
        return await converse(send, prompt, seed)

    moment = 0.0
    tasks = []
    async with asyncio.TaskGroup() as group:
        for prompt in prompts:
            tasks.append(group.create_task(user(prompt, moment)))
            moment += rng.expovariate(rate)
    return [answer for task in tasks for answer in task.result()]


async def converse(send: Send, prompt: Prompt, seed: int) -> list[Answer]:
    """All turns of one prompt; each answer becomes part of the next turn's context."""
    messages = list(prompt.messages)
    answers = []
    for turn, follow_up in enumerate((None, *prompt.follow_ups)):
        if follow_up is not None:
            messages.append({"role": "user", "content": follow_up})
        stream = await send(messages, random.Random(f"{seed}/{prompt.id}/{turn}").getrandbits(31))
        messages.append({"role": "assistant", "content": stream.text})
        answers.append(
            Answer(
                prompt=prompt.id,
                category=prompt.category,
                turn=turn,
                prompt_tokens=stream.prompt_tokens,
                tokens=stream.tokens,
                finish_reason=stream.finish_reason,
                digest=stream.digest,
                chunk_s=[round(moment, 6) for moment in stream.chunk_s],
                chunk_tokens=stream.chunk_tokens,
                total_s=stream.total_s,
                verify_steps=stream.verify_steps,
                accept_histogram=stream.accept_histogram,
            )
        )
    return answers
