"""Tiny checkpoints, made once a session."""

from pathlib import Path

import pytest

from tests.engine.checkpoints import save_random_drafter, save_target


@pytest.fixture(scope="session")
def tiny_drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_drafter(tmp_path_factory.mktemp("drafter"))


@pytest.fixture(scope="session")
def tiny_qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target("qwen3", tmp_path_factory.mktemp("qwen3"))
