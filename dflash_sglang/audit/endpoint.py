"""One running server, asked in tokens through SGLang's native protocol."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, NamedTuple

import httpx

_ANSWER_TIMEOUT = 600.0
_IDLE_CONNECTION = 1.0  # seconds; a server that closes one at its 5 s would break a request
_PROBE_TIMEOUT = 10.0
_LARGEST_VOCABULARY = 1 << 21


class AuditError(ValueError):
    """The audit cannot be held: a server is down, or the two cannot be compared."""


class Answer(NamedTuple):
    """What one request got."""

    token_ids: list[int]
    finish_reason: str  # "stop", "length" or "abort"
    verify_steps: int  # target forwards behind the prefill; 0 without speculation
    log_probs: list[float]  # of the tokens, at the request's temperature; empty unless asked for


class Question(NamedTuple):
    """One request: a prompt in tokens, and SGLang's sampling parameters."""

    prompt: list[int]
    sampling: dict[str, Any]


class Endpoint:
    """A server under audit.

    Args:
        url: where it listens, such as ``http://127.0.0.1:30000``.
        role: "baseline" or "candidate", for error messages.
    """

    def __init__(self, url: str, role: str) -> None:
        self.url = url.rstrip("/")
        self.role = role
        self._client = httpx.Client(
            timeout=_ANSWER_TIMEOUT,
            limits=httpx.Limits(max_connections=None, keepalive_expiry=_IDLE_CONNECTION),
        )

    @cached_property
    def info(self) -> dict[str, Any]:
        """SGLang's resolved server arguments.

        Raises:
            AuditError: nobody answers, or it is no SGLang server.
        """
        try:
            answer = self._client.get(f"{self.url}/server_info", timeout=_PROBE_TIMEOUT)
            answer.raise_for_status()
            return answer.json()
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise AuditError(
                f"no SGLang server answers as --{self.role} at {self.url} ({_reason(error)}): "
                "start it, or check the address."
            ) from error

    @property
    def is_deterministic(self) -> bool:
        """Does it honour a request's seed?"""
        return bool(self.info.get("enable_deterministic_inference"))

    @property
    def dtype(self) -> str:
        """What the server was told to compute in; "auto" means the checkpoint's own."""
        return str(self.info.get("dtype", "auto"))

    @property
    def algorithm(self) -> str | None:
        """Its speculative algorithm, None for plain decoding."""
        return self.info.get("speculative_algorithm")

    def encode(self, text: str) -> list[int]:
        """A user's message as prompt tokens: by the chat template, or plainly where there is none.

        Raises:
            AuditError: the server has no tokenizer.
        """
        chat = {"messages": [{"role": "user", "content": text}]}
        for body in (chat, {"prompt": text}):
            answer = self._send("/tokenize", body)
            if answer.status_code == httpx.codes.OK:
                return answer.json()["tokens"]
        raise AuditError(
            f"the {self.role} at {self.url} cannot turn text into tokens (HTTP "
            f"{answer.status_code}): start it without --skip-tokenizer-init."
        )

    def ask(self, question: Question) -> Answer:
        """One request, one answer."""
        return _answer(self._generate(question.prompt, question.sampling))

    def ask_together(self, questions: list[Question]) -> list[Answer]:
        """Many requests with log-probabilities in one call; the server batches them as it likes."""
        bodies = self._generate(
            [question.prompt for question in questions],
            [question.sampling for question in questions],
            return_logprob=True,
        )
        return [_answer(body) for body in bodies]

    def ask_all(self, questions: list[Question], concurrency: int) -> Iterable[Answer]:
        """All requests, ``concurrency`` at a time; yields in the order of the questions."""
        with ThreadPoolExecutor(concurrency) as pool:
            yield from pool.map(self.ask, questions)

    def log_probs(self, context: list[int], tokens: list[int], ranks: int = 0) -> dict[int, float]:
        """Log-probabilities at temperature 1 of the token behind ``context``.

        Args:
            context: prompt and delivered tokens.
            tokens: ids that are wanted.
            ranks: so many of the most likely ids are wanted as well.
        """
        body = self._generate(
            context,
            {"max_new_tokens": 1, "temperature": 0.0, "ignore_eos": True},
            return_logprob=True,
            token_ids_logprob=tokens,
            top_logprobs_num=ranks,
        )
        meta = body["meta_info"]
        entries = list(meta["output_token_ids_logprobs"][0])
        if ranks:
            entries += meta["output_top_logprobs"][0]
        return {int(token): float(value) for value, token, *_ in entries}

    @cached_property
    def vocab_size(self) -> int:
        """Number of token ids, by bisection over which ids the server takes."""
        low, high = 1, _LARGEST_VOCABULARY
        while low < high:
            middle = (low + high + 1) // 2
            if self._knows_token(middle - 1):
                low = middle
            else:
                high = middle - 1
        return low

    def _knows_token(self, token: int) -> bool:
        answer = self._send(
            "/generate",
            {
                "input_ids": [0],
                "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
                "return_logprob": True,
                "token_ids_logprob": [token],
            },
        )
        return answer.status_code == httpx.codes.OK

    def _generate(self, prompt: Any, sampling: Any, **further: Any) -> Any:
        answer = self._send(
            "/generate", {"input_ids": prompt, "sampling_params": sampling, **further}
        )
        if answer.status_code != httpx.codes.OK:
            raise AuditError(
                f"the {self.role} at {self.url} refused a request of the audit (HTTP "
                f"{answer.status_code}): {answer.text[:300]}"
            )
        return answer.json()

    def _send(self, path: str, body: dict[str, Any]) -> httpx.Response:
        try:
            return self._client.post(f"{self.url}{path}", json=body)
        except httpx.HTTPError as error:
            raise AuditError(
                f"the {self.role} at {self.url} stopped answering ({_reason(error)}): its log may "
                "say why."
            ) from error


def _answer(body: dict[str, Any]) -> Answer:
    meta = body["meta_info"]
    return Answer(
        token_ids=body.get("output_ids", []),
        finish_reason=(meta.get("finish_reason") or {}).get("type", ""),
        verify_steps=meta.get("spec_verify_ct", 0),
        log_probs=[entry[0] for entry in meta.get("output_token_logprobs", [])],
    )


def _reason(error: Exception) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        return f"HTTP {error.response.status_code}"
    return str(error) or type(error).__name__
