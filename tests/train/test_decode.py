"""Batched speculative decoding: lossless, and equal to the one-request specification."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from tiny_pair import TAPS
from transformers import AutoModelForCausalLM

from dflash_sglang.drafter.reference import Sampling, Window, generate
from dflash_sglang.train.data import CaptureDataset
from dflash_sglang.train.decode import Decoded, decode_batch
from dflash_sglang.train.evaluate import evaluate
from dflash_sglang.train.generate import generate_batch, sampled_draw
from dflash_sglang.train.heldout import greedy_samples, replay_accept_length
from dflash_sglang.train.objective import DraftObjective
from dflash_sglang.train.options import TrainOptions
from dflash_sglang.train.prompts import Prompt
from dflash_sglang.train.proposals import Greedy, RejectionChain, SharedNoise
from dflash_sglang.train.replay import replay_batch, write_texts
from dflash_sglang.train.target import Target
from dflash_sglang.train.trainer import Trainer
from dflash_sglang.train.tree_shape import TreeShape
from dflash_sglang.tree.noisy import DEFAULT_DOUBT

PROMPTS = [[5], [7, 8, 9, 3, 4], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [11, 12, 13]]
SHAPES = [TreeShape.chain(4), TreeShape("tree", 9, 3)]


@pytest.fixture(scope="module")
def trained(target: Target, capture_path: Path, tmp_path_factory) -> DraftObjective:
    """A drafter that has learned enough for long and short acceptances to occur."""
    from tiny_pair import tiny_drafter

    objective = DraftObjective(tiny_drafter(), target.embedding_weight, target.head_weight)
    options = TrainOptions(steps=40, sequences=8, anchors=8, warmup_steps=4, learning_rate=1e-2)
    Trainer(objective, CaptureDataset(capture_path, 4), options, tmp_path_factory.mktemp("t")).run()
    return objective.eval()


def total(results: list[Decoded]) -> int:
    return sum(sum(result.accept_lens) for result in results)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.name)
@pytest.mark.parametrize("length", [1, 2, 17])
def test_greedy_text_is_the_targets_own(
    target: Target, trained: DraftObjective, shape: TreeShape, length: int
):
    plain = generate_batch(target, PROMPTS, length, [])
    drafted = decode_batch(target, trained, PROMPTS, Greedy(shape), length, [])
    assert [result.tokens for result in drafted] == plain
    # The first token comes from prefill, all others from verify steps.
    assert total(drafted) == len(PROMPTS) * (length - 1)
    if length > 2:
        assert max(max(result.accept_lens) for result in drafted) > 1


def test_a_stop_token_inside_an_accepted_block_ends_the_response(
    target: Target, trained: DraftObjective
):
    free = generate_batch(target, PROMPTS, 17, [])
    stop = free[2][8]
    expected = generate_batch(target, PROMPTS, 17, [stop])
    drafted = decode_batch(target, trained, PROMPTS, Greedy(SHAPES[1]), 17, [stop])
    assert [result.tokens for result in drafted] == expected


@pytest.mark.parametrize("listed", [None, tuple(range(50, 10, -2))], ids=["all", "listed"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.name)
def test_tokens_and_accept_lengths_equal_the_reference(
    target: Target,
    target_path: Path,
    trained: DraftObjective,
    shape: TreeShape,
    temperature: float,
    listed: tuple[int, ...] | None,
):
    objective = copy.copy(trained)
    objective.draft_vocabulary = None if listed is None else torch.tensor(listed)
    seeds = torch.tensor([3, 1, 4, 2**40 + 1])
    fixed = SharedNoise(shape, temperature, seeds, doubt=DEFAULT_DOUBT)
    proposer = fixed if temperature else Greedy(shape)
    ours = decode_batch(target, objective, PROMPTS, proposer, 14, [])
    model = AutoModelForCausalLM.from_pretrained(target_path, dtype=torch.float32).eval()
    window = Window(shape.nodes, max_depth=3, max_children=shape.children, draft_vocabulary=listed)
    for prompt, seed, result in zip(PROMPTS, seeds.tolist(), ours, strict=True):
        sampling = Sampling(temperature, seed)
        theirs = generate(model, trained.drafter, torch.tensor(prompt), 14, window, sampling)
        assert result.tokens == theirs.tokens
        # The last step may overshoot: the reference counts all of it, we what was delivered.
        assert result.accept_lens[:-1] == theirs.accept_lens[:-1]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.name)
@pytest.mark.parametrize("stop", [(), (17, 25, 31, 40)])
def test_a_replay_delivers_what_decoding_does(
    target: Target,
    trained: DraftObjective,
    shape: TreeShape,
    temperature: float,
    stop: tuple[int, ...],
):
    """Texts of one token, texts cut by a stop token, and a doubt learned from step to step."""
    seeds = torch.tensor([3, 1, 4, 2**40 + 1])
    rows = torch.tensor([2, 0, 3])  # the proposer knows more prompts than the batch has
    prompts = [PROMPTS[row] for row in rows.tolist()]

    def proposer() -> Greedy | SharedNoise:
        return SharedNoise(shape, temperature, seeds) if temperature else Greedy(shape)

    draw = sampled_draw(torch.full((3,), temperature), seeds[rows])
    for length in (1, 17):
        decoded = decode_batch(target, trained, prompts, proposer(), length, stop, rows)
        texts = write_texts(target, prompts, length, stop, draw)
        assert replay_batch(trained, texts, proposer(), rows) == decoded


def test_rejection_sampling_keeps_the_targets_law(target: Target, trained: DraftObjective):
    """Frequencies of the second token, whose draw goes through draft and rejection."""
    count, temperature = 3000, 1.5
    prompts = [[5, 9, 30]] * count
    drafted = decode_batch(target, trained, prompts, RejectionChain(4, temperature, seed=0), 3, [])
    first = torch.tensor([result.tokens[0] for result in drafted])
    second = torch.tensor([result.tokens[1] for result in drafted])
    logits = target.model(torch.tensor([[5, 9, 30]])).logits[0, -1]
    law = (logits / temperature).softmax(-1)
    joint = torch.zeros(60)
    for token in law.topk(20).indices.tolist():
        after = target.model(torch.tensor([[5, 9, 30, token]])).logits[0, -1]
        joint += law[token] * (after / temperature).softmax(-1)
    kept = torch.isin(first, law.topk(20).indices)
    seen = torch.bincount(second[kept], minlength=60) / count
    assert (seen - joint).abs().sum() < 0.15


def test_replayed_accept_length_equals_decoding(
    target: Target, trained: DraftObjective, capture_path: Path
):
    """Evaluation during training reads bf16 features from disk; decoding computes them itself."""
    samples = greedy_samples(CaptureDataset(capture_path, 4), 12)
    prompts = [s.tokens[: s.response_start].tolist() for s in samples]
    for shape in SHAPES:
        decoded = decode_batch(target, trained, prompts, Greedy(shape), 20, [])
        replayed = replay_accept_length(trained, samples, [shape])[shape.name]
        assert replayed.tokens == total(decoded)
        steps = sum(len(result.accept_lens) for result in decoded)
        assert replayed.steps == pytest.approx(steps, rel=0.05)


def test_an_evaluation_counts_what_every_mode_delivers(target: Target, trained: DraftObjective):
    prompts = [Prompt(f"p{i}", "", tokens) for i, tokens in enumerate(PROMPTS)]
    chain, tree = TreeShape.chain(4), TreeShape.tree(9)
    seeds = torch.arange(4) + 7
    expected: dict[str, list[Decoded]] = {
        name: decode_batch(target, trained, PROMPTS, proposer, 17, [])
        for name, proposer in {
            "greedy chain": Greedy(chain),
            "greedy tree 9": Greedy(tree),
            "shared-noise chain": SharedNoise(chain, 0.8, seeds),
            "shared-noise tree 9": SharedNoise(tree, 0.8, seeds),
        }.items()
    }
    measured = {
        mode.name: mode
        for mode in evaluate(target, trained, prompts, [], 17, 9, 0.8, seed=7, batch_size=3)
    }
    assert measured["rejection chain"].tokens == len(PROMPTS) * 16
    for name, results in expected.items():
        assert measured[name].tokens == total(results)
        assert measured[name].verify_steps == sum(len(r.accept_lens) for r in results)


def test_a_pair_in_bfloat16_is_evaluated(target_path: Path, trained: DraftObjective):
    target = Target.from_pretrained(str(target_path), TAPS, dtype=torch.bfloat16)
    drafter = copy.deepcopy(trained.drafter).bfloat16()
    objective = DraftObjective(drafter, target.embedding_weight, target.head_weight).eval()
    prompts = [Prompt(f"p{i}", "", tokens) for i, tokens in enumerate(PROMPTS)]
    modes = evaluate(target, objective, prompts, [], 9, 9, 0.8)
    assert [mode.tokens for mode in modes] == [len(PROMPTS) * 8] * 5
