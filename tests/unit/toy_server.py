"""A server in this process: a bigram model under SGLang's seeded draw, with faults to order."""

from __future__ import annotations

from typing import Any

import torch

from dflash_sglang.audit.endpoint import Answer, Endpoint, Question
from dflash_sglang.tree.truncation import NO_TOP_K, Truncation
from dflash_sglang.verify import NoiseKeys, sampled_tokens

VOCAB = 48


def random_logits(seed: int, scale: float = 1.2) -> torch.Tensor:
    """[VOCAB, VOCAB] float32, row: previous token."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(VOCAB, VOCAB, generator=generator) * scale


class ToyServer(Endpoint):
    """Answers like a server, token after token.

    Args:
        logits: the target, [VOCAB, VOCAB].
        draft: law of the drafted tokens, [VOCAB, VOCAB] logits.
        bias: chance that a token is the drafter's whatever the target drew.
        rounding: size of the error that the logits have while generating, not when asked for.
        deterministic: honours seeds.
    """

    def __init__(
        self,
        logits: torch.Tensor,
        *,
        draft: torch.Tensor | None = None,
        bias: float = 0.0,
        rounding: float = 0.0,
        deterministic: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__("http://toy", "toy")
        self.logits = logits
        self.info = {"enable_deterministic_inference": deterministic, "dtype": "float32"}
        self.vocab_size = VOCAB
        self._draft = draft
        self._bias = bias
        self._random = torch.Generator().manual_seed(seed)
        error = torch.randn(logits.shape, generator=self._random) * rounding
        self._generating = logits + error
        self.asked: list[Question] = []

    def ask_all(self, questions: list[Question], concurrency: int) -> list[Answer]:
        return self.ask_together(questions)

    def ask_together(self, questions: list[Question]) -> list[Answer]:
        """Questions of one call share all sampling parameters but the seed."""
        self.asked += questions
        sampling = questions[0].sampling
        last = torch.tensor([question.prompt[-1] for question in questions])
        seeds = torch.tensor([self._seed(question.sampling) for question in questions])
        lengths = torch.tensor([len(question.prompt) for question in questions])
        tokens, log_probs = [], []
        for step in range(sampling["max_new_tokens"]):
            drawn = self._draw(last, seeds, lengths - 1 + step, sampling)
            if step > 0:
                drawn = self._biased(last, drawn)
            log_probs.append(self.logits.log_softmax(-1)[last, drawn])
            tokens.append(drawn)
            last = drawn
        rows = zip(torch.stack(tokens, 1).tolist(), torch.stack(log_probs, 1).tolist(), strict=True)
        return [Answer(ids, "length", len(ids) - 1, values) for ids, values in rows]

    def log_probs(self, context: list[int], tokens: list[int], ranks: int = 0) -> dict[int, float]:
        law = self.logits[context[-1]].log_softmax(-1)
        wanted = {*tokens, *law.topk(ranks).indices.tolist()}
        return {token: float(law[token]) for token in wanted}

    def encode(self, text: str) -> list[int]:
        return [sum(text.encode()) % VOCAB]

    def _seed(self, sampling: dict[str, Any]) -> int:
        if self.is_deterministic:
            return sampling.get("sampling_seed", 42)
        return int(torch.randint(1 << 62, (), generator=self._random))

    def _draw(
        self,
        last: torch.Tensor,
        seeds: torch.Tensor,
        positions: torch.Tensor,
        sampling: dict[str, Any],
    ) -> torch.Tensor:
        n = len(last)
        truncation = Truncation(
            torch.full((n,), sampling.get("top_k", NO_TOP_K)),
            torch.full((n,), sampling.get("top_p", 1.0)),
        )
        return sampled_tokens(
            self._generating[last].unsqueeze(1),
            torch.full((n,), float(sampling["temperature"])),
            NoiseKeys(seeds, positions.unsqueeze(1)),
            torch.zeros(n, 1, dtype=torch.int64),
            truncation if {"top_k", "top_p"} & sampling.keys() else None,
            noise_by_rank=True,
        ).squeeze(1)

    def _biased(self, last: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        if self._draft is None:
            return drawn
        law = self._draft[last].softmax(-1)
        drafted = torch.multinomial(law, 1, generator=self._random).squeeze(1)
        wins = torch.rand(last.shape, generator=self._random) < self._bias
        return torch.where(wins, drafted, drawn)
