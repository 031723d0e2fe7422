"""A random tiny target, text it generated, and a drafter for it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from tiny_pair import MASK, TAPS, make_capture, tiny_config, tiny_drafter
from transformers import Qwen3ForCausalLM

from dflash_sglang.train.data import CaptureDataset
from dflash_sglang.train.objective import DraftObjective
from dflash_sglang.train.target import Target


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def target_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("target")
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(tiny_config())
    with torch.no_grad():
        # Initialised as usual it would repeat one token for ever; and it never says the mask token.
        for parameter in model.model.layers.parameters():
            parameter.mul_(3.0)
        model.get_input_embeddings().weight.mul_(10.0)
        model.get_input_embeddings().weight[MASK] = 0.0
    model.save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def target(target_path: Path) -> Target:
    return Target.from_pretrained(str(target_path), TAPS)


@pytest.fixture(scope="session")
def prompts_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = random.Random(0)
    lines = [
        json.dumps({"id": f"p{i}", "token_ids": [rng.randrange(MASK) for _ in range(3 + i % 9)]})
        for i in range(24)
    ]
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="session")
def capture_path(
    target: Target, target_path: Path, prompts_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    out = tmp_path_factory.mktemp("capture")
    make_capture(target, target_path, prompts_path, out, 0.0)
    return out


@pytest.fixture
def dataset(capture_path: Path) -> CaptureDataset:
    return CaptureDataset(capture_path, block_size=4)


@pytest.fixture
def objective(target: Target) -> DraftObjective:
    return DraftObjective(tiny_drafter(), target.embedding_weight, target.head_weight)
