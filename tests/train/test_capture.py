"""Generation, features and shards."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_pair import MASK, TAPS, make_capture
from transformers import AutoModelForCausalLM

from dflash_sglang.train import commands
from dflash_sglang.train.capture import read_features
from dflash_sglang.train.data import BatchSchedule, CaptureDataset
from dflash_sglang.train.errors import DataError, TargetError
from dflash_sglang.train.generate import generate_batch, sampled_draw
from dflash_sglang.train.prompts import read_prompts
from dflash_sglang.train.store import Manifest, read_shard
from dflash_sglang.train.target import Target

PROMPTS = [[5], [7, 8, 9], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]]


@pytest.fixture(scope="module")
def plain_model(target_path: Path):
    return AutoModelForCausalLM.from_pretrained(target_path, dtype=torch.float32).eval()


def test_batched_greedy_text_equals_transformers_one_by_one(target: Target, plain_model):
    ours = generate_batch(target, PROMPTS, 12, [])
    for prompt, response in zip(PROMPTS, ours, strict=True):
        theirs = plain_model.generate(
            torch.tensor([prompt]), max_new_tokens=12, do_sample=False, pad_token_id=0
        )
        assert response == theirs[0, len(prompt) :].tolist()


def test_a_row_ends_with_its_stop_token_and_the_others_go_on(target: Target):
    free = generate_batch(target, PROMPTS, 12, [])
    stop = free[1][4]
    stopped = generate_batch(target, PROMPTS, 12, [stop])
    for whole, cut in zip(free, stopped, strict=True):
        expected = whole[: whole.index(stop) + 1] if stop in whole else whole
        assert cut == expected


def test_sampling_depends_on_the_seed_only(target: Target):
    heat = torch.tensor([0.0, 1.0, 1.0])

    def sample(seed: int, rows: slice = slice(3)) -> list[list[int]]:
        draw = sampled_draw(heat[rows], torch.arange(3)[rows] + seed)
        return generate_batch(target, PROMPTS[rows], 10, [], draw)

    assert sample(1) == sample(1)
    assert sample(1)[2:] == sample(1, slice(2, 3))  # and on no other row
    assert sample(1)[1:] != sample(2)[1:]
    assert sample(1)[0] == sample(2)[0] == generate_batch(target, PROMPTS[:1], 10, [])[0]


def test_features_are_the_outputs_of_the_tap_layers(target: Target, plain_model):
    texts = [[1, 2, 3], [4, 5, 6, 7, 8]]
    for text, features in zip(texts, read_features(target, texts), strict=True):
        states = plain_model(torch.tensor([text]), output_hidden_states=True).hidden_states
        expected = torch.cat([states[layer + 1][0] for layer in TAPS], dim=-1)
        torch.testing.assert_close(features, expected.bfloat16(), rtol=2e-2, atol=2e-2)


def test_shards_hold_prompts_responses_and_their_features(capture_path: Path, prompts_path: Path):
    manifest = Manifest.read(capture_path)
    prompts = read_prompts(prompts_path, None)
    assert list(manifest.shards) == [f"shard-0000{i}.safetensors" for i in range(3)]
    assert manifest.num_response_tokens == 24 * 20
    first = read_shard(capture_path / "shard-00000.safetensors")
    assert first.ids == [p.id for p in prompts[:10]]
    assert first.tokens[: len(prompts[0].tokens)].tolist() == prompts[0].tokens
    assert first.features.shape == (first.tokens.numel(), 3 * 32)
    assert first.features.dtype == torch.bfloat16


def test_an_interrupted_capture_resumes_to_the_same_shards(
    target: Target, target_path: Path, prompts_path: Path, tmp_path: Path
):
    whole = make_capture(target, target_path, prompts_path, tmp_path, 1.0)
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "shard-00001.safetensors").unlink()
    kept = (tmp_path / "shard-00000.safetensors").stat().st_mtime_ns
    again = make_capture(target, target_path, prompts_path, tmp_path, 1.0)
    assert again == whole
    assert (tmp_path / "shard-00000.safetensors").stat().st_mtime_ns == kept


def test_a_folder_of_another_capture_is_refused(
    target: Target, target_path: Path, prompts_path: Path, tmp_path: Path
):
    make_capture(target, target_path, prompts_path, tmp_path, 1.0)
    with pytest.raises(
        DataError, match=r"another capture.*temperatures.*1\.0.* there, .*0\.5.* here"
    ):
        make_capture(target, target_path, prompts_path, tmp_path, 0.5)


def test_a_capture_in_another_dtype_is_another_capture(
    target: Target, target_path: Path, prompts_path: Path, tmp_path: Path
):
    make_capture(target, target_path, prompts_path, tmp_path, 1.0)
    half = Target.from_pretrained(str(target_path), TAPS, dtype=torch.bfloat16)
    with pytest.raises(DataError, match=r"dtype.*float32 there, bfloat16 here"):
        make_capture(half, target_path, prompts_path, tmp_path, 1.0)


@pytest.mark.parametrize("command", ["capture", "evaluate"])
def test_commands_ask_for_the_compiled_kernels(monkeypatch, tmp_path: Path, command: str):
    """Without them the noise of every column of the vocabulary is written out."""

    class Asked(Exception):
        pass

    def serve(device: str):
        raise Asked(device)

    monkeypatch.setattr(commands.library, "serve", serve)
    with pytest.raises(Asked, match="cpu"):
        getattr(commands, f"{command}_command")(tmp_path, tmp_path, tmp_path)


def test_an_unfinished_capture_is_no_dataset(tmp_path: Path):
    with pytest.raises(DataError, match="no finished capture"):
        CaptureDataset(tmp_path, 4)


def test_responses_shorter_than_a_block_are_refused(capture_path: Path):
    with pytest.raises(DataError, match=r"block of 32 tokens.* 24 has 20"):
        CaptureDataset(capture_path, block_size=32)


def test_a_damaged_shard_is_named(capture_path: Path, tmp_path: Path):
    bad = tmp_path / "shard-00000.safetensors"
    bad.write_bytes((capture_path / "shard-00000.safetensors").read_bytes()[:500])
    with pytest.raises(DataError, match="shard-00000"):
        read_shard(bad)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "not a JSON object"),
        ('{"id": 1}', "exactly one of messages, prompt, token_ids"),
        ('{"prompt": "hi"}', "needs the target's tokenizer"),
        ('{"token_ids": []}', "prompt is empty"),
        ("", "holds no prompts"),
    ],
)
def test_bad_prompt_files_are_refused_in_one_sentence(tmp_path: Path, line: str, complaint: str):
    path = tmp_path / "p.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(DataError, match=complaint):
        read_prompts(path, None)


def test_a_tap_beyond_the_depth_is_refused(target_path: Path):
    with pytest.raises(TargetError, match=r"\[8\] asked of a target of 8 layers"):
        Target.from_pretrained(str(target_path), (1, 8))


def test_batches_are_a_function_of_seed_and_step(dataset: CaptureDataset):
    first, second = (BatchSchedule(dataset, 4, 5, seed=3) for _ in range(2))
    [first[i] for i in range(7)]  # other state in one of them
    for a, b in zip(first[9], second[9], strict=True):
        assert torch.equal(a, b)


def test_anchors_lie_in_the_response_and_differ_between_epochs(dataset: CaptureDataset):
    schedule = BatchSchedule(dataset, len(dataset), 5, seed=3)
    epochs = [schedule[i] for i in range(2)]
    for batch in epochs:
        responses = batch.lengths - 20
        assert (batch.anchors >= responses[:, None]).all()
        assert (batch.anchors <= batch.lengths[:, None] - 2).all()
        assert (batch.anchors[:, 1:] > batch.anchors[:, :-1]).all()
    in_order = [
        dict(zip(map(tuple, b.tokens.tolist()), b.anchors.tolist(), strict=True)) for b in epochs
    ]
    assert in_order[0].keys() == in_order[1].keys()
    assert in_order[0] != in_order[1]


def test_captured_text_never_holds_the_mask_token(dataset: CaptureDataset):
    assert dataset.count_token(MASK) == 0
