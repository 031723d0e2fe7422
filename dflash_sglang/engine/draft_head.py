"""The target's head as drafting uses it: all of its rows, or those of the draft vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dflash_sglang.drafter.vocabulary import spread_logits
from dflash_sglang.engine.vocabulary import TargetVocabulary, project


class DraftHead:
    """Logits that drafts are made from.

    Args:
        vocabulary: embedding and head of the target.
        tokens: ids of the draft vocabulary, whose rows are copied to every rank, so that drafting
            needs no communication; None borrows the whole head. The copy stays as it is when the
            target's weights are updated in service, which costs accept length only.

    Raises:
        ValueError: the rows cannot be copied (see :meth:`TargetVocabulary.head_rows`).
    """

    def __init__(self, vocabulary: TargetVocabulary, tokens: Sequence[int] | None) -> None:
        self._vocabulary = vocabulary
        self._tokens: torch.Tensor | None = None  # [R] int64
        if tokens is not None:
            # Ascending, so that logits are spread from front to back and ties fall as without it.
            self._tokens = torch.tensor(sorted(tokens), device=vocabulary.device)
            self._rows = vocabulary.head_rows(self._tokens)  # [R, D]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [..., D] -> logits [..., R] in the head's dtype; R is V without a list."""
        if self._tokens is None:
            return self._vocabulary.logits(hidden)
        return project(hidden, self._rows)

    def tokens(self, columns: torch.Tensor) -> torch.Tensor:
        """Columns of the logits, [...] int64 -> their token ids."""
        return columns if self._tokens is None else self._tokens[columns]

    def over_vocabulary(self, logits: torch.Tensor) -> torch.Tensor:
        """[..., R] -> [..., V], same dtype: -inf for tokens that drafts are not made of."""
        if self._tokens is None:
            return logits
        return spread_logits(logits, self._tokens, self._vocabulary.size)
