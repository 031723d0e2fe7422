"""The reference generator: speculation must not be visible in what it generates."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from drafters import drafter_config, random_weights
from torch import Tensor
from transformers import (
    DynamicCache,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from dflash_sglang.config import DFlash2Config
from dflash_sglang.drafter import AttentionCore, DFlash2Drafter
from dflash_sglang.drafter.reference import Generation, Sampling, Window, _Request, generate
from dflash_sglang.tree import Truncation
from dflash_sglang.verify import NoiseKeys, sampled_tokens

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}
TARGETS = {
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
    "gemma3": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**SHAPE, sliding_window=8)),
}
DRAFTERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "dflash2": {"conv": (2, 8), "selector": (8, 4)},
    "sliding": {"layer_types": ["sliding_attention"] * 3, "sliding_window": 6},
    "shifted": {"selector": (8, 4), "shift_label": True},
}
WINDOWS = {
    "chain": Window(num_nodes=8, max_children=1),
    "tree": Window(),
    "shallow": Window(num_nodes=5, max_depth=2, max_children=3),
}
LAWS = {
    "greedy": Sampling(),
    "temperature": Sampling(temperature=0.8, seed=11),
    "truncated": Sampling(temperature=1.0, seed=12, top_k=9, top_p=0.8),
}
PROMPT = torch.tensor([5, 17, 3, 88, 61, 42, 9, 96, 23, 70, 11])


def target_model(name: str) -> Any:
    torch.manual_seed(1)
    target = TARGETS[name]().eval()
    random_weights(target)
    return target


def drafter_model(name: str, cls: type[DFlash2Drafter] = DFlash2Drafter) -> DFlash2Drafter:
    torch.manual_seed(2)
    drafter = cls(DFlash2Config.from_dict(drafter_config(num_target_layers=5, **DRAFTERS[name])))
    random_weights(drafter)
    return drafter.eval()


@torch.inference_mode()
def plain_decoding(target: Any, prompt: Tensor, count: int, law: Sampling) -> list[int]:
    """One token at a time, without a drafter; the law and the noise are those of the sampler."""
    cache, tokens, fresh = DynamicCache(), [], prompt
    truncation = None
    if law.top_k is not None:
        truncation = Truncation(torch.tensor([law.top_k]), torch.tensor([law.top_p]))
    for _ in range(count):
        logits = target(fresh[None], past_key_values=cache, use_cache=True).logits[:, -1:].float()
        position = torch.tensor([[cache.get_seq_length() - 1]])
        noise = NoiseKeys(torch.tensor([law.seed]), position)
        depths = torch.zeros((1, 1), dtype=torch.int64)
        temperature = torch.tensor([law.temperature])
        fresh = sampled_tokens(logits, temperature, noise, depths, truncation)[0]
        tokens.append(int(fresh))
    return tokens


class KnowingDrafter(DFlash2Drafter):
    """Proposes the given continuation of PROMPT, wrong at every fifth position."""

    continuation: list[int]
    anchor_position: int

    def forward(self, embeddings: Tensor, positions: Tensor, attention: AttentionCore) -> Tensor:
        self.anchor_position = int(positions[0, 0])
        return super().forward(embeddings, positions, attention)

    def unary_logits(self, hidden: Tensor, head: Any) -> Tensor:
        logits = torch.zeros(1, hidden.shape[1], self.config.vocab_size)
        for j in range(hidden.shape[1]):
            position = self.anchor_position + 1 + j
            index = position - len(PROMPT)
            token = self.continuation[index] if index < len(self.continuation) else 0
            wrong = (token + 1) % self.config.vocab_size
            logits[0, j, wrong if position % 5 == 0 else token] = 1000.0
        return logits


@pytest.mark.parametrize(
    ("drafter", "window", "law"),
    [(drafter, "tree", "temperature") for drafter in DRAFTERS]
    + [("dflash2", window, law) for window in WINDOWS for law in LAWS],
)
def test_tokens_equal_plain_decoding_for_any_drafter_and_tree(
    drafter: str, window: str, law: str
) -> None:
    target = target_model("qwen3")
    expected = plain_decoding(target, PROMPT, 20, LAWS[law])
    got = generate(target, drafter_model(drafter), PROMPT, 20, WINDOWS[window], LAWS[law])
    assert got.tokens == expected
    assert 1 + sum(got.accept_lens) >= 20


@pytest.mark.parametrize("law", ["greedy", "temperature"])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_tokens_equal_plain_decoding_for_other_targets(name: str, law: str) -> None:
    target = target_model(name)
    expected = plain_decoding(target, PROMPT, 16, LAWS[law])
    got = generate(target, drafter_model("dflash2"), PROMPT, 16, sampling=LAWS[law])
    assert got.tokens == expected


def test_greedy_tokens_equal_those_of_transformers() -> None:
    target = target_model("qwen3")
    expected = target.generate(PROMPT[None], max_new_tokens=24, do_sample=False)[0, len(PROMPT) :]
    assert generate(target, drafter_model("plain"), PROMPT, 24).tokens == expected.tolist()


def known(target: Any, law: Sampling, **arguments: Any) -> tuple[list[int], Generation]:
    """The plain continuation of 40 tokens, and a generation whose drafter knows it."""
    drafter = drafter_model("plain", KnowingDrafter)
    drafter.continuation = plain_decoding(target, PROMPT, 40, law)
    return drafter.continuation, generate(target, drafter, PROMPT, sampling=law, **arguments)


@pytest.mark.parametrize("law", ["greedy", "temperature"])
def test_right_drafts_are_accepted_up_to_the_first_wrong_one(law: str) -> None:
    expected, got = known(
        target_model("qwen3"), LAWS[law], max_new_tokens=40, window=WINDOWS["chain"]
    )
    assert got.tokens == expected
    # The prompt ends at 10, so the first anchor stands at 11; drafts for 15, 20, ... are wrong.
    assert got.accept_lens[:4] == [4, 5, 5, 5]


def test_window_limits_the_accepted_length() -> None:
    _, got = known(target_model("qwen3"), LAWS["greedy"], max_new_tokens=40, window=Window(4, 2, 1))
    assert max(got.accept_lens) == 3


@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_generation_stops_inside_an_accepted_path_at_the_limit(count: int) -> None:
    expected, got = known(target_model("qwen3"), LAWS["temperature"], max_new_tokens=count)
    assert got.tokens == expected[:count]


def test_generation_ends_at_a_stop_token_inside_an_accepted_path() -> None:
    expected = plain_decoding(target_model("qwen3"), PROMPT, 40, LAWS["temperature"])
    stop = expected[2]
    end = expected.index(stop) + 1
    _, got = known(
        target_model("qwen3"), LAWS["temperature"], max_new_tokens=40, stop_token_ids=[stop]
    )
    assert got.tokens == expected[:end]


@torch.inference_mode()
def test_committed_context_equals_that_of_the_whole_text_at_once() -> None:
    target, law = target_model("qwen3"), LAWS["temperature"]
    drafter = drafter_model("plain", KnowingDrafter)
    drafter.continuation = plain_decoding(target, PROMPT, 40, law)
    speculative = _Request(target, drafter, Window(), law)
    tokens = [speculative.prefill(PROMPT)]
    for _ in range(4):
        tokens += speculative.step(tokens[-1])
    assert len(tokens) > 12

    whole = _Request(target, drafter, Window(), law)
    assert whole.prefill(torch.cat((PROMPT, torch.tensor(tokens[:-1])))) == tokens[-1]
    assert whole.cache.get_seq_length() == speculative.cache.get_seq_length()
    for ours, theirs in zip(speculative.context, whole.context, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_mask_token_in_prompt_and_output_is_an_ordinary_token() -> None:
    target = target_model("qwen3")
    with torch.no_grad():
        target.lm_head.weight[96] = 0.5 * target.lm_head.weight[96] + target.lm_head.weight.mean(0)
    expected = plain_decoding(target, PROMPT, 60, Sampling(temperature=1.5, seed=3))
    assert 96 in expected and 96 in PROMPT.tolist()
    got = generate(
        target, drafter_model("dflash2"), PROMPT, 60, sampling=Sampling(temperature=1.5, seed=3)
    )
    assert got.tokens == expected
