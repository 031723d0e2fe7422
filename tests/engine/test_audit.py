"""The audit against real servers: a faithful pair passes, and a law that is off by 2 % does not."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from rich.console import Console

from dflash_sglang.audit.run import audit_running
from dflash_sglang.audit.scope import Level, Scope
from dflash_sglang.bench.server import Server, running
from tests.engine.checkpoints import save_target
from tests.engine.servers import plain_server, speculative_server
from tests.engine.tokenizers import save_tokenizer

pytestmark = pytest.mark.server


class Pair(NamedTuple):
    plain: Server
    tree: Server


@pytest.fixture(scope="module")
def speaker(tmp_path_factory) -> Path:
    target = save_target("qwen3", tmp_path_factory.mktemp("speaker"))
    save_tokenizer(target)
    return target


def pair_of(speaker: Path, drafter: Path, *flags: str) -> Pair:
    return Pair(
        plain_server(speaker, *flags),
        speculative_server(speaker, drafter, "--speculative-eagle-topk", "12", *flags),
    )


@pytest.fixture(scope="module")
def seeded(speaker, tiny_drafter) -> Iterator[Pair]:
    pair = pair_of(speaker, tiny_drafter, "--enable-deterministic-inference")
    with running(*pair):
        yield pair


def audit(pair: Pair, scope: Scope):
    report = audit_running(pair.plain.url, pair.tree.url, scope, Console(file=io.StringIO()))
    print(report.as_json())
    return report


def test_tokens_are_identical_greedy_and_with_a_seed(seeded):
    scope = Scope(
        levels=(Level.GREEDY, Level.SEEDED), prompts=12, max_tokens=24, temperatures=(0.7, 1.5)
    )
    report = audit(seeded, scope)
    assert [comparison.defects for comparison in report.comparisons] == [0] * 18
    assert all(comparison.identical == 12 for comparison in report.comparisons)
    assert report.comparisons[0].accept_length > 1.1
    assert json.loads(report.as_json())["candidate"]["algorithm"] == "DFLASH2"


def test_a_difference_is_followed_on_real_servers(seeded, speaker, tmp_path_factory):
    """Another target behind the candidate: every first difference is a defect with both gaps."""
    import torch
    from safetensors.torch import load_file, save_file

    other = tmp_path_factory.mktemp("other")
    for file in speaker.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    weights = load_file(other / "model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"] * torch.linspace(
        0.9, 1.1, weights["model.norm.weight"].shape[0]
    )
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    flags = ("--enable-deterministic-inference", "--served-model-name", "other")
    with plain_server(other, *flags) as server:
        from dflash_sglang.audit.conditions import GREEDY, Condition
        from dflash_sglang.audit.endpoint import Endpoint
        from dflash_sglang.audit.identity import IdentityAudit

        ours, theirs = Endpoint(seeded.plain.url, "baseline"), Endpoint(server.url, "candidate")
        prompts = [ours.encode(text) for text in ("one", "two", "three", "four")]
        levels = IdentityAudit(ours, theirs, prompts, 32, 1e-4)
        for condition in (GREEDY, Condition(1.0), Condition(1.0, top_k=20, top_p=0.9)):
            (found,) = levels.compare(condition, (4,))
            assert found.differences, condition.label
            for difference in found.differences:
                cause = difference.cause
                assert cause.verdict == "defect"
                assert cause.reason == "the two servers' laws differ by more than rounding"
                assert abs(cause.baseline_gap - cause.candidate_gap) > 1e-4


def test_unseeded_output_follows_the_law(speaker, tiny_drafter):
    """With tests/mutations this is the test that a bias of 2 % fails."""
    pair = pair_of(speaker, tiny_drafter)
    with running(*pair):
        report = audit(pair, Scope(levels=(Level.LAW,)))
    assert report.law.passes
    assert report.law.smallest_bias < 0.025
