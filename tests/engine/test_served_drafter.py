"""The drafter in the engine is the module: it drafts, step by step, what the reference drafts."""

import httpx
import pytest
import torch
import transformers

from dflash_sglang.drafter.checkpoint import load_drafter
from dflash_sglang.drafter.reference import Window, generate
from tests.engine.checkpoints import LISTED, VOCAB
from tests.engine.traffic import generate_all, make_prompts

NEW_TOKENS = 64

pytestmark = pytest.mark.server


@pytest.mark.parametrize(
    ("shape", "window"),
    [
        ("chain", Window(num_nodes=8, max_children=1, draft_vocabulary=LISTED)),
        ("tree", Window(num_nodes=16, max_children=12)),
    ],
)
def test_server_takes_the_steps_of_the_reference(trio, tiny_qwen3, tiny_drafter, shape, window):
    """Any difference in hidden states, context, lattice or tree would change what is accepted."""
    target = transformers.AutoModelForCausalLM.from_pretrained(tiny_qwen3, dtype=torch.float32)
    drafter = load_drafter(tiny_drafter, dtype=torch.float32)
    prompts = make_prompts(12, VOCAB - 1, longest=120)
    served = generate_all(getattr(trio, shape), prompts, NEW_TOKENS, concurrency=4)
    expected = [
        generate(target, drafter, torch.tensor(prompt), NEW_TOKENS, window) for prompt in prompts
    ]
    assert [answer.token_ids for answer in served] == [answer.tokens for answer in expected]
    steps = [answer.meta["spec_verify_ct"] for answer in served]
    assert steps == [len(answer.accept_lens) for answer in expected]
    assert sum(steps) < (NEW_TOKENS - 1) * len(prompts)  # drafts were accepted


def test_hidden_states_of_plain_steps_are_context_like_any_others(trio):
    """They wait in the engine; a request that continues such an answer finds them in the cache."""
    plainly = {"custom_params": {"dflash2": {"speculate": False}}}
    prompts = make_prompts(8, VOCAB - 1, longest=60)
    answers = generate_all(trio.tree, prompts, 40, concurrency=4, **plainly)
    assert all(answer.meta["spec_verify_ct"] == 39 for answer in answers)
    continued = [
        [*prompt, *answer.token_ids] for prompt, answer in zip(prompts, answers, strict=True)
    ]
    reused = generate_all(trio.tree, continued, NEW_TOKENS, concurrency=1)
    httpx.post(f"{trio.tree.url}/flush_cache").raise_for_status()
    fresh = generate_all(trio.tree, continued, NEW_TOKENS, concurrency=1)
    for again, answer, prompt in zip(reused, fresh, prompts, strict=True):
        assert again.meta["cached_tokens"] >= len(prompt) + 30 > answer.meta["cached_tokens"]
        assert again.meta["spec_verify_ct"] == answer.meta["spec_verify_ct"]
        assert again.token_ids == answer.token_ids
