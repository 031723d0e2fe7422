"""The demo corpus: deterministic, split by slot values, right in what it claims."""

import json
import re
from itertools import islice
from random import Random

import pytest

from dflash_sglang.demo import arithmetic, code
from dflash_sglang.demo.corpus import GENERATORS, conversations, split_of
from dflash_sglang.demo.functions import RECIPES, draw_function
from dflash_sglang.demo.prompts import (
    EVALUATED,
    held_out_prompts,
    training_prompts,
    write_prompts,
)
from dflash_sglang.demo.sample import DOMAINS


def drawn(count: int, seed: int = 3, split: str = "training", domain: str | None = None):
    return list(islice(conversations(seed, split, domain), count))


def test_conversations_are_a_function_of_the_seed():
    assert drawn(100) == drawn(100)
    assert drawn(100) != drawn(100, seed=4)


@pytest.mark.parametrize("domain", DOMAINS)
def test_conversation_alternates_and_ends_with_the_assistant(domain):
    for sample in drawn(50, domain=domain):
        assert sample.domain == domain
        roles = [message["role"] for message in sample.messages]
        assert roles == ["user", "assistant"] * (len(roles) // 2)
        assert all(message["content"].strip() for message in sample.messages)


def test_every_generator_draws_many_distinct_slot_values():
    rng = Random(0)
    for generators in GENERATORS.values():
        for generator in set(generators):
            assert len({generator(rng).key for _ in range(200)}) >= 20, generator.__name__


def test_splits_share_no_slot_values():
    trained = {key for s in drawn(2000) for key in s.key.split(" && ")}
    for domain in EVALUATED:
        for sample in drawn(40, split="held-out", domain=domain):
            assert trained.isdisjoint(sample.key.split(" && "))


def test_unknown_domain_is_refused_by_name():
    with pytest.raises(ValueError, match="'poetry'"):
        next(conversations(0, "training", "poetry"))


def test_json_answers_parse():
    for sample in drawn(200, domain="json"):
        for block in re.findall(r"```json\n(.*?)\n```", sample.messages[-1]["content"], re.DOTALL):
            json.loads(block)


def test_equations_of_arithmetic_answers_hold():
    equation = re.compile(r"(?<![\w.:-])(\d+(?: [-+*/] \d+)+) = (\d+)(?![\d.:]| [-+*/] )")
    checked = 0
    rng = Random(1)
    for generator in arithmetic.GENERATORS:
        for _ in range(50):
            for left, right in equation.findall(generator(rng).messages[-1]["content"]):
                assert eval(left) == int(right), f"{left} = {right}"
                checked += 1
    assert checked > 1000


def test_python_answers_compile():
    rng = Random(2)
    for generator in set(code.GENERATORS):
        for _ in range(20):
            answer = generator(rng).messages[-1]["content"]
            for block in re.findall(r"```python\n(.*?)\n```", answer, re.DOTALL):
                compile(block, generator.__name__, "exec")


def test_every_function_recipe_runs_on_its_example():
    rng, seen = Random(0), set()
    while len(seen) < len(RECIPES):
        function = draw_function(rng)
        call, result = function.call(rng)
        assert call.startswith(function.name) and result
        seen.add(re.sub(r"\d+", "{n}", function.name))


def test_sum_list_returns_the_sum():
    rng = Random(0)
    function = draw_function(rng)
    while function.name != "sum_list":
        function = draw_function(rng)
    call, result = function.call(Random(7))
    assert int(result) == sum(map(int, re.findall(r"\d+", call)))


def test_held_out_prompts_are_fixed_balanced_and_distinct():
    prompts = held_out_prompts()
    assert prompts == held_out_prompts()
    assert [p.domain for p in prompts] == [d for d in EVALUATED for _ in range(12)]
    assert len({json.dumps(p.messages) for p in prompts}) == len(prompts) == 48
    assert all(p.messages[-1]["role"] == "user" for p in prompts)


def test_training_prompts_are_distinct_and_none_is_held_out():
    prompts = training_prompts(1500, seed=1)
    texts = {json.dumps(p.messages) for p in prompts}
    assert len(texts) == len({p.id for p in prompts}) == 1500
    assert texts.isdisjoint(json.dumps(p.messages) for p in held_out_prompts())
    assert {p.domain for p in prompts} == set(DOMAINS)


def test_written_prompts_read_back(tmp_path):
    prompts = held_out_prompts(2)
    write_prompts(prompts, tmp_path / "prompts.jsonl")
    lines = (tmp_path / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [p._asdict() for p in prompts]


def test_a_stream_holds_only_its_split():
    assert {split_of(s) for s in drawn(300)} == {"training"}
    assert {split_of(s) for s in drawn(20, split="held-out")} == {"held-out"}
