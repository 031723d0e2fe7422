"""What the drafter's KV injection costs, and what fusing its operations could save at most.

    python tests/kernels/measure_injection.py [--rounds 21]

For the demo pair in float32 on one thread, in turns: the injection of a step's accepted tokens as
it is served (projection, norm, keys and values of all layers, head norm, RoPE, write to slots),
its two products alone (the floor of any fused kernel), and the target's products of the verify
step that it belongs to. A step is more than those products, so the shares are upper bounds.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from statistics import median

import torch

from dflash_sglang.bench.kernel_goals import _products
from dflash_sglang.demo.run import PAIR
from dflash_sglang.drafter.checkpoint import load_drafter
from dflash_sglang.kernels import library
from dflash_sglang.kernels.linear import linear
from dflash_sglang.kernels.rows import store_kv

ACCEPTED = 4  # tokens of a request's step
NODES = 16  # of its tree


def ms(side: Callable[[], object]) -> float:
    start = time.process_time()
    for _ in range(5):
        side()
    return (time.process_time() - start) / 5 * 1e3


@torch.inference_mode()
def measure(requests: int, rounds: int) -> tuple[float, float, float]:
    """Milliseconds of injection, of its products alone, of the verify step's products."""
    drafter = load_drafter(PAIR / "drafter").float().freeze(fused=True)
    config, tokens = drafter.config, requests * ACCEPTED
    width = drafter.fc.in_features
    features, positions = torch.randn(tokens, width), torch.arange(tokens)
    heads = (config.num_key_value_heads, config.head_dim)
    caches = torch.zeros(2, config.num_hidden_layers, 4096, *heads)
    slots = torch.randperm(4096)[:tokens]

    def injection() -> None:
        context = drafter.project_features(features)
        written = zip(*drafter.context_keys_values(context, positions), *caches, strict=True)
        for key, value, k_cache, v_cache in written:
            store_kv(key, value, k_cache, v_cache, slots)

    stacked = drafter.context_projection
    assert stacked is not None

    def floor() -> None:
        linear(linear(features, drafter.fc.weight), stacked.weight, stacked.bias)

    weights = _products(json.loads((PAIR / "target" / "config.json").read_text()))
    inputs = {w.shape[1]: torch.randn(requests * NODES, w.shape[1]) for w in weights}

    def verify() -> None:
        for weight in weights:
            linear(inputs[weight.shape[1]], weight)

    sides = (injection, floor, verify)
    for side in sides:
        side()
    times = [[ms(side) for side in sides] for _ in range(rounds)]
    return tuple(median(column) for column in zip(*times, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=21)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    print(f"kernels: {library.load()}, one thread")
    for requests in (1, 8):
        injection, floor, verify = measure(requests, rounds)
        share, gain = injection / (injection + verify), (injection - floor) / (injection + verify)
        print(
            f"{requests} requests: injection {injection:.3f} ms, its products {floor:.3f} ms, "
            f"verify products {verify:.2f} ms: at most {share:.1%} of a step; fusing would save at "
            f"most {gain:.1%}"
        )


if __name__ == "__main__":
    main()
