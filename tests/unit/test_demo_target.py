"""Training the demo target: schedule, optimizer, resuming."""

from itertools import islice, pairwise

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from dflash_sglang.demo.corpus import conversations
from dflash_sglang.demo.optimizer import Optimizer, orthogonalised
from dflash_sglang.demo.target import (
    Plan,
    load_checkpoint,
    rate_factor,
    response_loss,
    save_checkpoint,
    save_final,
)
from dflash_sglang.demo.tokenizer import train_tokenizer

PLAN = Plan(steps=6, batch=2, learning_rate=0.02, warmup=2, seed=0)


def tiny_model() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=32,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            tie_word_embeddings=True,
        )
    )


@pytest.fixture(scope="module")
def demo_tokenizer():
    drawn = islice(conversations(0, "training"), 1500)
    return train_tokenizer(m["content"] for sample in drawn for m in sample.messages)


def advance(model: nn.Module, optimizer: Optimizer, steps: range) -> list[float]:
    losses = []
    for step in steps:
        tokens = torch.randint(32, (2, 16), generator=torch.Generator().manual_seed(step))
        loss = response_loss(model, tokens, tokens)
        loss.backward()
        optimizer.step(rate_factor(step, PLAN))
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 8, 24), (2, 24, 8)])
def test_orthogonalised_matrices_have_singular_values_near_one(shape):
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    singular = torch.linalg.svdvals(orthogonalised(matrices))
    assert singular.min() > 0.3 and singular.max() < 1.3


def test_rate_rises_stays_then_falls_to_zero():
    plan = Plan(steps=100, batch=1, learning_rate=1.0, warmup=10, seed=0)
    factors = [rate_factor(step, plan) for step in range(plan.steps)]
    assert factors[:10] == pytest.approx([(i + 1) / 10 for i in range(10)])
    assert factors[10:71] == [1.0] * 61
    assert all(a > b for a, b in pairwise(factors[70:]))
    assert factors[-1] == pytest.approx(1 / 30)


def test_loss_falls_on_a_repeated_batch():
    model = tiny_model()
    optimizer = Optimizer(model, 0.02)
    tokens = torch.arange(16).repeat(2, 1)
    losses = []
    for _ in range(30):
        loss = response_loss(model, tokens, tokens)
        loss.backward()
        optimizer.step(1.0)
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_resuming_equals_not_interrupting(tmp_path):
    whole = tiny_model()
    expected = advance(whole, whole_optimizer := Optimizer(whole, 0.02), range(6))
    assert whole_optimizer.momentum

    cut = tiny_model()
    cut_optimizer = Optimizer(cut, 0.02)
    first = advance(cut, cut_optimizer, range(3))
    save_checkpoint(tmp_path / "c.safetensors", cut, cut_optimizer, 3, PLAN)

    resumed = tiny_model()
    resumed_optimizer = Optimizer(resumed, 0.02)
    done = load_checkpoint(tmp_path / "c.safetensors", resumed, resumed_optimizer, PLAN)
    assert first + advance(resumed, resumed_optimizer, range(done, 6)) == expected
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert a.equal(b)


def test_checkpoint_of_another_plan_is_refused(tmp_path):
    model = tiny_model()
    optimizer = Optimizer(model, 0.02)
    advance(model, optimizer, range(1))
    save_checkpoint(tmp_path / "c.safetensors", model, optimizer, 1, PLAN)
    with pytest.raises(ValueError, match=r"seed=9.*got one of.*seed=0"):
        load_checkpoint(tmp_path / "c.safetensors", model, optimizer, PLAN._replace(seed=9))


@pytest.mark.parametrize(
    ("done", "steps", "accepted"), [(4, 9, True), (5, 9, False), (4, 4, False)]
)
def test_length_of_the_run_may_change_until_the_rate_decays(tmp_path, done, steps, accepted):
    model = tiny_model()
    optimizer = Optimizer(model, 0.02)
    advance(model, optimizer, range(1))
    path, plan = tmp_path / "c.safetensors", PLAN._replace(steps=steps)
    save_checkpoint(path, model, optimizer, done, PLAN)
    if accepted:
        assert load_checkpoint(path, model, optimizer, plan) == done
    else:
        with pytest.raises(ValueError, match=f"steps={steps}.*got one of.*steps=6"):
            load_checkpoint(path, model, optimizer, plan)


def test_saved_target_loads_in_bfloat16_with_its_tokenizer(tmp_path, demo_tokenizer):
    model = tiny_model()
    save_final(tmp_path, model, demo_tokenizer)
    served = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto")
    assert served.dtype == torch.bfloat16
    assert served.generation_config.eos_token_id == demo_tokenizer.eos_token_id
    tokens = AutoTokenizer.from_pretrained(tmp_path).encode("def f(x): return 42")
    assert tokens == demo_tokenizer.encode("def f(x): return 42")


def test_optimizer_without_gradients_is_refused():
    with pytest.raises(ValueError, match="call backward first"):
        Optimizer(tiny_model(), 0.02).step(1.0)
