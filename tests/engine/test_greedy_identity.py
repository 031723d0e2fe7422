"""Greedy tokens of a dflash2 server equal those of SGLang without speculation."""

import pytest
import torch
import transformers

from dflash_sglang.bench.server import running
from dflash_sglang.drafter import reference
from dflash_sglang.drafter.checkpoint import load_drafter
from dflash_sglang.drafter.reference import Window
from tests.engine.checkpoints import TARGETS, VOCAB, save_random_drafter, save_target
from tests.engine.servers import plain_server, speculative_server
from tests.engine.traffic import Generation, differences, generate_all, make_prompts

TIE = 1e-4  # nats; in float32 two computations of one logit differ by less
BFLOAT16_TIE = 2**-5  # nats; the spacing of bfloat16 logits of order 8

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    return make_prompts(64, VOCAB - 1, longest=1500)


@pytest.fixture(scope="module")
def expected(trio, prompts) -> list[Generation]:
    return generate_all(trio.plain, prompts, 96, concurrency=4)


@pytest.mark.parametrize("concurrency", [1, 8])
@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_tokens_equal_those_of_plain_decoding(trio, prompts, expected, shape, concurrency):
    got = generate_all(getattr(trio, shape), prompts, 96, concurrency)
    parted = differences(trio.plain, prompts, expected, got)
    assert [found for found in parted if abs(found.gap) >= TIE] == []
    print(f"{shape}, concurrency {concurrency}: {len(prompts)} prompts, {len(parted)} ties")


def test_drafts_are_accepted(trio, prompts):
    """Otherwise the tests above would compare plain decoding with itself."""
    got = generate_all(trio.tree, prompts[:8], 96, concurrency=4)
    steps = sum(answer.meta["spec_verify_ct"] for answer in got)
    tokens = sum(len(answer.token_ids) - 1 for answer in got)
    assert tokens / steps > 1.1


@pytest.mark.parametrize("architecture", [name for name in TARGETS if name != "qwen3"])
def test_every_target_architecture_keeps_its_tokens(architecture, tmp_path):
    """And drafts what the reference drafts, whose features are those of transformers."""
    target = save_target(architecture, tmp_path / architecture)
    drafter_path = save_random_drafter(tmp_path / "drafter", spread=0.15)
    plain = plain_server(target)
    tree = speculative_server(target, drafter_path, "--speculative-eagle-topk", "12")
    prompts = make_prompts(16, VOCAB - 1, longest=200)
    with running(plain, tree):
        expected = generate_all(plain, prompts, 48, concurrency=4)
        got = generate_all(tree, prompts, 48, concurrency=4)
        parted = differences(plain, prompts, expected, got)
    assert [found for found in parted if abs(found.gap) >= TIE] == []
    model = transformers.AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    drafter = load_drafter(drafter_path, dtype=torch.float32)
    window = Window(num_nodes=16, max_children=12)
    steps = [
        len(reference.generate(model, drafter, torch.tensor(prompt), 48, window).accept_lens)
        for prompt in prompts[:6]
    ]
    assert [answer.meta["spec_verify_ct"] for answer in got[:6]] == steps


def test_in_bfloat16_every_difference_is_a_tie(tiny_qwen3, tiny_drafter):
    half = ("--dtype", "bfloat16")
    plain = plain_server(tiny_qwen3, *half)
    tree = speculative_server(tiny_qwen3, tiny_drafter, "--speculative-eagle-topk", "12", *half)
    prompts = make_prompts(32, VOCAB - 1, longest=300)
    with running(plain, tree):
        expected = generate_all(plain, prompts, 64, concurrency=4)
        got = generate_all(tree, prompts, 64, concurrency=8)
        parted = differences(plain, prompts, expected, got)
    assert [found for found in parted if abs(found.gap) >= BFLOAT16_TIE] == []
    print(f"bfloat16: {len(prompts)} prompts, {len(parted)} ties")
