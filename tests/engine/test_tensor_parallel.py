"""Two ranks take one width, one tree and one accepted path; their tokens are plain decoding's."""

import pytest

from dflash_sglang.bench.server import running
from dflash_sglang.drafter.vocabulary import write_draft_vocabulary
from tests.engine.checkpoints import LISTED, VOCAB
from tests.engine.servers import plain_server, speculative_server
from tests.engine.test_greedy_identity import TIE
from tests.engine.traffic import differences, generate_all, make_prompts

pytestmark = pytest.mark.server


def test_two_ranks_keep_the_tokens_of_two_ranks_without_speculation(
    tiny_qwen3, tiny_drafter, tmp_path
):
    """Drafts are made of tokens whose rows of the head lie on the second rank, most of them."""
    listed = tmp_path / "listed.json"
    write_draft_vocabulary(listed, LISTED)
    two_ranks = ("--tp", "2")
    plain = plain_server(tiny_qwen3, *two_ranks)
    tree = speculative_server(
        tiny_qwen3,
        tiny_drafter,
        *("--speculative-eagle-topk", "12", "--dflash2-config", '{"adaptive": true}'),
        *("--speculative-token-map", str(listed)),
        *two_ranks,
    )
    prompts = make_prompts(8, VOCAB - 1, longest=100)
    with running(plain, tree):
        expected = generate_all(plain, prompts, 32, concurrency=4)
        got = generate_all(tree, prompts, 32, concurrency=4)
        sampled = generate_all(tree, prompts, 32, concurrency=4, temperature=1.0)
        parted = differences(plain, prompts, expected, got)
    assert [found for found in parted if abs(found.gap) >= TIE] == []
    assert all(len(answer.token_ids) == 32 for answer in sampled)
