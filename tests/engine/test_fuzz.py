"""Random requests of every kind: nothing breaks, nothing hangs, nothing leaks.

Runs for DFLASH2_FUZZ_SECONDS, and not at all without it: a few seeded requests with several
answers still differ from the plain server, and which ones depends on who shared a batch.
DFLASH2_FUZZ_SEED repeats a run's requests.
"""

import json
import os
import time
from collections.abc import Iterator
from math import ceil
from random import Random
from typing import NamedTuple

import httpx
import pytest

from dflash_sglang.bench.server import Server, running
from tests.engine.checkpoints import save_target
from tests.engine.fuzzing import HANG, Fuzzer, send
from tests.engine.servers import plain_server, speculative_server
from tests.engine.test_cases import assert_pool_is_whole
from tests.engine.tokenizers import save_tokenizer

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(
        "DFLASH2_FUZZ_SECONDS" not in os.environ, reason="set DFLASH2_FUZZ_SECONDS to run it"
    ),
]

SECONDS = float(os.environ.get("DFLASH2_FUZZ_SECONDS", "0"))
WIDTH = 12
COMPARED = 0.1  # of the requests whose tokens are decided


class Pair(NamedTuple):
    plain: Server
    tree: Server


@pytest.fixture(scope="module")
def pair(tiny_drafter, tmp_path_factory) -> Iterator[Pair]:
    target = save_target("qwen3", tmp_path_factory.mktemp("fuzzed"))
    save_tokenizer(target)
    seeds = "--enable-deterministic-inference"
    servers = Pair(
        # With the overlap scheduler SGLang's own penalizers miss the newest token.
        plain_server(target, seeds, "--disable-overlap-schedule"),
        # Little room and short chunks, so that requests wait, share batches and are retracted.
        speculative_server(
            target,
            tiny_drafter,
            *("--speculative-eagle-topk", "12", "--chunked-prefill-size", "64"),
            *("--enable-mixed-chunk", "--max-total-tokens", "2500", seeds),
            *("--max-running-requests", str(WIDTH)),
        ),
    )
    with running(*servers):
        yield servers


def test_random_requests_of_every_kind_are_served(pair):
    seed = int(os.environ.get("DFLASH2_FUZZ_SEED", str(int(time.time()))))
    report = Fuzzer(pair.tree, seed, WIDTH).run(SECONDS)
    print(f"seed {seed}: {dict(report.kinds)}", *report.failures, sep="\n")
    assert report.failures == [], f"DFLASH2_FUZZ_SEED={seed}"
    assert_pool_is_whole(pair.tree)

    assert report.comparable, "the run was too short to compare anything"
    count = ceil(COMPARED * len(report.comparable))
    chosen = Random(seed).sample(report.comparable, count)
    print(f"compared with plain decoding: {count} of {len(report.comparable)}")
    differing = []
    with httpx.Client(timeout=HANG) as client:
        for request, outputs in chosen:
            status, answers = send(client, pair.plain.url, request)
            assert status == httpx.codes.OK
            expected = [answer["output_ids"] for answer in answers]
            if outputs != expected:
                differing.append(f"{json.dumps(request.body)}\n  got {outputs}\n  not {expected}")
    print(*differing, sep="\n")
    assert differing == [], f"DFLASH2_FUZZ_SEED={seed}"
