"""`dflash2 vocabulary`: the tokens that a target wrote most, as a file that servers read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dflash_sglang.drafter.vocabulary import read_draft_vocabulary
from dflash_sglang.train.__main__ import main
from dflash_sglang.train.data import CaptureDataset


def test_the_most_frequent_tokens_of_the_responses_are_listed(capture_path: Path, tmp_path: Path):
    out = tmp_path / "draft_vocabulary.json"
    held_out = ("--held-out", str(capture_path))
    assert (
        main(
            ["vocabulary", "--data", str(capture_path), "--out", str(out), "--size", "9", *held_out]
        )
        == 0
    )
    listed = torch.tensor(read_draft_vocabulary(out, 60))
    counts = CaptureDataset(capture_path, 4).label_counts()
    assert len(listed) == 9
    assert counts[listed].tolist() == counts.sort(descending=True).values[:9].tolist()


def test_more_tokens_than_there_are_is_one_sentence(
    capture_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "draft_vocabulary.json"
    assert main(["vocabulary", "--data", str(capture_path), "--out", str(out), "--size", "61"]) == 2
    assert "61 tokens asked of a vocabulary of 60" in capsys.readouterr().err
    assert not out.exists()


def test_a_folder_that_is_not_there_is_named(
    capture_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "missing" / "draft_vocabulary.json"
    assert main(["vocabulary", "--data", str(capture_path), "--out", str(out), "--size", "9"]) == 2
    assert f"{out.parent} is no folder" in capsys.readouterr().err
