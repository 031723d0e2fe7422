"""The tokens that drafts are made of: the file, the rows of the head, and where it is found."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from dflash_sglang.algorithm import find_draft_vocabulary, options_from
from dflash_sglang.drafter.inspect import inspect_checkpoint
from dflash_sglang.drafter.vocabulary import (
    DRAFT_VOCABULARY,
    VocabularyError,
    listed_beside,
    read_draft_vocabulary,
    spread_logits,
    write_draft_vocabulary,
)
from dflash_sglang.engine.draft_head import DraftHead
from dflash_sglang.options import TUNING_VARIABLE, OptionsError
from dflash_sglang.train.vocabulary import coverage, rank_tokens
from tests.engine.checkpoints import VOCAB, save_random_drafter


def test_what_is_written_is_read_in_its_order(tmp_path: Path) -> None:
    write_draft_vocabulary(tmp_path / DRAFT_VOCABULARY, [7, 2, 9])
    assert listed_beside(tmp_path, 10) == (7, 2, 9)
    assert listed_beside(tmp_path / "elsewhere", 10) is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"tokens": [1]}', "a JSON array of token ids, which .* is not"),
        ("[1, 2.5]", "a JSON array of token ids, which .* is not"),
        ("[1, 10]", "lists the token 10, but the vocabulary has the tokens 0 to 9"),
        ("[1, -1]", "lists the token -1"),
        ("PK\x03\x04\x00", "a JSON array of token ids, which .* is not"),
        ("[1, 2, 1]", "lists a token more than once"),
    ],
)
def test_a_list_that_cannot_be_used_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "listed.json"
    file.write_text(text)
    with pytest.raises(VocabularyError, match=sentence):
        read_draft_vocabulary(file, 10)


def test_a_missing_list_is_named(tmp_path: Path) -> None:
    with pytest.raises(VocabularyError, match=r"listed.json is not: .*No such file"):
        read_draft_vocabulary(tmp_path / "listed.json", 10)


def test_logits_are_spread_over_the_vocabulary() -> None:
    logits = torch.tensor([[1.0, 2.0]], dtype=torch.bfloat16)
    spread = spread_logits(logits, torch.tensor([3, 0]), 5)
    assert spread.dtype == torch.bfloat16
    assert spread.tolist() == [[2.0, -torch.inf, -torch.inf, 1.0, -torch.inf]]


class Vocabulary:
    """A target's head of V rows, which notes whether all of them were computed."""

    size = 11

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.weight = torch.randn(11, 4, generator=torch.Generator().manual_seed(0))
        self.computed = 0

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        self.computed += 1
        return hidden @ self.weight.T

    def head_rows(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.weight[tokens]


def test_listed_logits_are_those_of_the_whole_head() -> None:
    vocabulary, hidden, listed = Vocabulary(), torch.randn(2, 3, 4), [9, 1, 5]
    whole = DraftHead(vocabulary, None)
    expected = whole.over_vocabulary(whole.logits(hidden))
    part = DraftHead(vocabulary, listed)
    got = part.over_vocabulary(part.logits(hidden))
    assert got.shape == expected.shape and vocabulary.computed == 1
    torch.testing.assert_close(got[..., listed], expected[..., listed])
    best = part.tokens(part.logits(hidden).argmax(dim=-1))
    assert torch.equal(best, got.argmax(dim=-1))
    assert torch.equal(whole.tokens(best), best)
    others = [token for token in range(11) if token not in listed]
    assert (got[..., others] == -torch.inf).all()


def test_tokens_rank_by_count_then_by_id() -> None:
    counts = torch.tensor([0, 5, 0, 9, 5, 1])
    ranked = rank_tokens(counts)
    assert ranked.tolist() == [3, 1, 4, 5, 0, 2]
    assert coverage(counts, ranked[:3]) == pytest.approx(19 / 20)


@pytest.fixture
def asked(tmp_path: Path) -> SimpleNamespace:
    """Server arguments of a drafter beside which a list of 40 tokens lies."""
    drafter = save_random_drafter(tmp_path / "drafter")
    write_draft_vocabulary(drafter / DRAFT_VOCABULARY, range(40))
    return SimpleNamespace(
        model_path="target",
        speculative_draft_model_path=str(drafter),
        speculative_draft_model_revision=None,
        speculative_token_map=None,
        speculative_num_steps=None,
        speculative_eagle_topk=None,
        device="cpu",
    )


def test_the_list_beside_the_checkpoint_is_used_unless_told_otherwise(
    asked: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert options_from(asked, None).draft_vocabulary == 40
    asked.speculative_token_map = str(tmp_path / "another.json")
    write_draft_vocabulary(asked.speculative_token_map, range(33))
    assert options_from(asked, None).draft_vocabulary == 33
    monkeypatch.setenv(TUNING_VARIABLE, '{"draft_vocabulary": false}')
    with pytest.raises(OptionsError, match="give one of the two"):
        options_from(asked, None)
    asked.speculative_token_map = None
    assert options_from(asked, None).draft_vocabulary is None


def test_a_list_of_the_current_folder_is_not_that_of_a_repository_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_draft_vocabulary(tmp_path / DRAFT_VOCABULARY, range(40))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert find_draft_vocabulary("nobody/no-such-drafter", None, None, VOCAB) is None


def test_inspect_says_how_many_tokens_drafts_are_made_of(asked: SimpleNamespace) -> None:
    drafter = Path(asked.speculative_draft_model_path)
    assert inspect_checkpoint(drafter).draft_vocabulary == 40
    (drafter / DRAFT_VOCABULARY).write_text(f"[{VOCAB}]")
    with pytest.raises(VocabularyError, match=f"lists the token {VOCAB}"):
        inspect_checkpoint(drafter)
    (drafter / DRAFT_VOCABULARY).unlink()
    assert inspect_checkpoint(drafter).draft_vocabulary is None
