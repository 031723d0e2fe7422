"""Server options: what is filled in, what is refused, and in which words."""

import json

import pytest

from dflash_sglang.config import DFlash2Config
from dflash_sglang.options import OptionsError, Tuning, parse_tuning, resolve_options
from tests.engine.checkpoints import drafter_fields

DRAFTER = DFlash2Config.from_dict(drafter_fields())  # block 8, 16 candidates


def resolve(
    num_steps=None, num_draft_tokens=None, topk=None, device="cpu", adaptive=None, vocabulary=None
):
    return resolve_options(
        DRAFTER,
        device=device,
        num_steps=num_steps,
        num_draft_tokens=num_draft_tokens,
        topk=topk,
        draft_vocabulary=vocabulary,
        tuning=Tuning(adaptive=adaptive),
    )


def test_everything_left_out_gives_a_tree_of_the_whole_block():
    options = resolve()
    assert (options.max_depth, options.num_nodes, options.max_children) == (7, 16, 4)
    assert not options.is_chain


def test_accelerators_verify_more_nodes_than_a_cpu():
    assert resolve(device="cuda").num_nodes == 32


def test_topk_of_one_is_a_chain_with_one_node_a_depth():
    options = resolve(topk=1)
    assert options.is_chain
    assert (options.max_depth, options.num_nodes) == (7, 8)


def test_a_chain_takes_its_depth_from_the_number_of_draft_tokens():
    assert resolve(topk=1, num_draft_tokens=4).max_depth == 3


def test_fewer_steps_than_the_block_make_a_shallower_tree():
    assert resolve(num_steps=3).max_depth == 3


def test_the_window_is_as_wide_as_the_block_when_the_tree_is_smaller():
    options = resolve(num_steps=2, topk=1)
    assert options.num_nodes == 3
    assert options.slots_per_step == 8


def test_on_a_cpu_a_number_of_nodes_that_is_left_out_is_chosen_at_every_step():
    assert resolve().is_adaptive
    assert "at most 16 nodes" in resolve().describe()
    assert not resolve(num_draft_tokens=16).is_adaptive
    assert not resolve(device="cuda").is_adaptive


def test_adaptive_makes_the_number_of_nodes_a_ceiling():
    assert resolve(num_draft_tokens=24, adaptive=True).is_adaptive
    assert not resolve(adaptive=False).is_adaptive


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"num_steps": 8}, "expected 1 to 7 .* got 8"),
        ({"topk": 17}, "expected 1 to 16 .* got 17"),
        ({"num_draft_tokens": 1}, "expected 2 to 128 .* got 1"),
        ({"num_draft_tokens": 200}, "expected 2 to 128 .* got 200"),
        ({"num_steps": 1, "topk": 2, "num_draft_tokens": 4}, "expected 2 to 3 .* got 4"),
        ({"topk": 1, "num_steps": 3, "num_draft_tokens": 16}, "has 4 nodes.* is 16"),
        ({"adaptive": True, "device": "cuda"}, "expected false with --device cuda, got true"),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_both_numbers(asked, sentence):
    with pytest.raises(OptionsError, match=sentence):
        resolve(**asked)


def test_tuning_is_read_from_json_and_from_a_file(tmp_path):
    text = json.dumps({"entropy_weight": 0.5, "shared_noise": False})
    file = tmp_path / "tuning.json"
    file.write_text(text)
    assert (
        parse_tuning(text)
        == parse_tuning(str(file))
        == Tuning(entropy_weight=0.5, shared_noise=False)
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"entropy": 1}', "unknown field `entropy`.*Allowed: entropy_weight"),
        ('{"entropy_weight": 11}', "entropy_weight.*Allowed: entropy_weight .number 0.0 to 10.0"),
        ('{"shared_noise": 1}', "Expected `bool`"),
        ("{broken", "malformed"),
        ("no-such-file.json", "readable file, got 'no-such-file.json'"),
    ],
)
def test_bad_tuning_is_refused_with_the_list_of_what_is_allowed(text, sentence):
    with pytest.raises(OptionsError, match=sentence):
        parse_tuning(text)


def test_a_draft_vocabulary_is_said_and_must_hold_all_candidates():
    assert "16 candidates a position out of 4,000 tokens" in resolve(vocabulary=4000).describe()
    assert "out of" not in resolve().describe()
    with pytest.raises(OptionsError, match=r"at least 32 tokens for 16 candidates .* got 31"):
        resolve(vocabulary=31)
