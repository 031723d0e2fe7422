"""One chat completion through the OpenAI protocol, with what it cost."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import openai

from dflash_sglang.bench.server import Server

Message = dict[str, str]


class Completion(NamedTuple):
    """An answer and its price."""

    text: str
    token_ids: list[int]
    finish_reason: str
    seconds: float  # from sending the request to the whole answer
    verify_steps: int  # target forwards behind the prefill; 0 without speculation

    @property
    def accept_length(self) -> float | None:
        """Tokens committed per verify step, bonus included; None without speculation."""
        # The first token is the prefill's.
        return (len(self.token_ids) - 1) / self.verify_steps if self.verify_steps else None


class Client:
    """OpenAI client of one server."""

    def __init__(self, server: Server) -> None:
        self._api = openai.OpenAI(base_url=f"{server.url}/v1", api_key="EMPTY", timeout=600)
        self._model = self._api.models.list().data[0].id

    def chat(
        self, messages: list[Message], *, max_tokens: int, temperature: float = 0.0, **sampling: Any
    ) -> Completion:
        """Send one chat request and wait for its answer.

        Args:
            messages: role and content, as OpenAI's API takes them.
            max_tokens: greatest number of tokens of the answer.
            temperature: 0 is greedy.
            sampling: further parameters of the API, such as ``seed`` or ``top_p``.
        """
        start = time.perf_counter()
        answer = self._api.chat.completions.create(
            model=self._model,
            messages=messages,  # type: ignore[arg-type]
            max_tokens=max_tokens,
            temperature=temperature,
            extra_body={"return_token_ids": True, "return_meta_info": True},
            **sampling,
        )
        seconds = time.perf_counter() - start
        choice = answer.choices[0]
        # SGLang's additions to the protocol.
        extra = choice.model_extra or {}
        return Completion(
            text=choice.message.content or "",
            token_ids=extra["response_token_ids"],
            finish_reason=choice.finish_reason,
            seconds=seconds,
            verify_steps=(extra.get("meta_info") or {}).get("spec_verify_ct", 0),
        )
