"""What is measured where nothing was said: every value of a preset can be run."""

import re

import pytest

from dflash_sglang.bench import presets
from dflash_sglang.bench.cases import all_cases, parse_loads, parse_numbers
from dflash_sglang.bench.modes import ADAPTIVE, PLAIN, parse_modes
from dflash_sglang.bench.workloads import load_workloads

MIX = presets.mix(context_words=30)


def cases_of(preset):
    temperatures = parse_numbers(preset.temperature, "--temperature")
    loaded = load_workloads(preset.workloads, preset.prompts)
    cases = all_cases(loaded, temperatures, parse_loads(preset.concurrency, ""))
    return [case for case in cases if preset.asks(case)]


def test_the_standard_asks_everything_of_every_mode():
    assert [str(mode) for mode in parse_modes(presets.STANDARD.modes)] == [
        *("plain", "native", "chain", "tree"),
    ]
    assert {(c.workload, c.temperature) for c in cases_of(presets.STANDARD)} == {
        ("builtin", 0.0),
        ("builtin", 1.0),
    }


def test_the_mix_holds_adaptive_against_plain_decoding_and_fixed_widths():
    modes = parse_modes(MIX.modes)
    assert {PLAIN, ADAPTIVE} < set(modes)
    assert len([mode for mode in modes if mode.is_fixed]) == len(modes) - 2 >= 2


def test_the_mix_asks_each_kind_of_text_behind_short_and_long_contexts():
    prompts = load_workloads(MIX.workloads, MIX.prompts)
    assert len(prompts) == 8
    for name, asked in prompts.items():
        kind = re.fullmatch(r"builtin:(\w+)(@30)?", name)[1]
        assert {prompt.category for prompt in asked} == {kind}
        long = [prompt.messages[0]["content"].startswith("Ignore these words") for prompt in asked]
        assert long == [name.endswith("@30")] * len(asked)


def test_the_mix_asks_creative_prompts_sampled_only():
    temperatures = {}
    for case in cases_of(MIX):
        temperatures.setdefault(case.workload.split("@")[0], set()).add(case.temperature)
    assert temperatures.pop("builtin:prose") == {1.0}
    assert list(temperatures.values()) == [{0.0, 1.0}] * 3


@pytest.mark.parametrize("preset", [presets.STANDARD, MIX], ids=["standard", "mix"])
def test_a_round_has_prompts_for_every_user(preset):
    users = parse_numbers(preset.concurrency, "--concurrency")
    for prompts in load_workloads(preset.workloads, preset.prompts).values():
        assert len(prompts) >= max(users) * (preset.prompts_per_user or 1)
