"""What a plain step costs on a server that could speculate, beside one of stock SGLang.

    python tests/engine/measure_plain_steps.py [--turns 5]

Two servers of the demo pair answer the same greedy requests in turns, the one with adaptive width
those that say ``"speculate": false``. The prompts are in the prefix cache before a turn is timed,
so that next to nothing but decoding is.
"""

from __future__ import annotations

import argparse
import random
import statistics
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

from dflash_sglang.bench.modes import ADAPTIVE, PLAIN, Pair, server_arguments
from dflash_sglang.bench.server import Server, cpu_arguments, running
from dflash_sglang.demo.run import PAIR
from tests.engine.traffic import generate

_LOADS = ((30, 1), (30, 8), (1400, 1), (1400, 8))  # tokens of a prompt, users
_TOKENS = 64
_PLAIN_ONLY = {"custom_params": {"dflash2": {"speculate": False}}}


def milliseconds(server: Server, prompts: list[list[int]], asked: dict) -> float:
    """Of a decode step, with all prompts at once."""
    for prompt in prompts:
        generate(server, prompt, 1, **asked)
    with ThreadPoolExecutor(len(prompts)) as users:
        started = perf_counter()
        list(users.map(lambda prompt: generate(server, prompt, _TOKENS, **asked), prompts))
        return 1e3 * (perf_counter() - started) / _TOKENS


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=5)
    turns = parser.parse_args().turns
    if turns < 1:
        parser.error(f"--turns must be at least 1, got {turns}")
    rng = random.Random(0)
    pair = Pair(str(PAIR / "target"), str(PAIR / "drafter"))
    stock, ours = (
        Server(server_arguments(mode, pair, cpu_arguments())) for mode in (PLAIN, ADAPTIVE)
    )
    with running(stock, ours):
        for length, users in _LOADS:
            took = []
            for _ in range(turns + 1):
                prompts = [[rng.randrange(10, 4000) for _ in range(length)] for _ in range(users)]
                took.append(
                    (milliseconds(stock, prompts, {}), milliseconds(ours, prompts, _PLAIN_ONLY))
                )
            theirs, own = (statistics.median(column) for column in zip(*took[1:], strict=True))
            ratio = statistics.median(b / a for a, b in took[1:])
            print(
                f"{length} tokens, {users} users: stock {theirs:.2f} ms, "
                f"with dflash2 {own:.2f} ms, ratio {ratio:.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
