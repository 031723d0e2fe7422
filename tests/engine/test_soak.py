"""Two thousand short requests leave the server as they found it."""

import psutil
import pytest

from tests.engine.checkpoints import VOCAB
from tests.engine.test_cases import assert_pool_is_whole
from tests.engine.traffic import generate_all, make_prompts

pytestmark = pytest.mark.server

QUARTERS = 4
REQUESTS = 2000


def resident_bytes(pid: int) -> int:
    """Memory of a server and all its workers."""
    launcher = psutil.Process(pid)
    return sum(
        process.memory_info().rss for process in (launcher, *launcher.children(recursive=True))
    )


def test_memory_is_flat_and_the_pool_whole_after_2000_requests(trio):
    prompts = make_prompts(REQUESTS // QUARTERS, VOCAB - 1, longest=40, seed=9)
    resident = []
    for _ in range(QUARTERS):
        answers = generate_all(trio.tree, prompts, 8, concurrency=8)
        assert all(len(answer.token_ids) == 8 for answer in answers)
        resident.append(resident_bytes(trio.tree.pid))
    assert_pool_is_whole(trio.tree)
    assert resident[3] <= 1.02 * resident[1]
    print(f"resident MB by quarter: {[round(size / 1e6) for size in resident]}")
