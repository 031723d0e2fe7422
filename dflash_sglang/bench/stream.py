"""One streamed chat completion, with the arrival time of every chunk.

SGLang's own ``sglang.benchmark.serving`` counts a chunk as a token when it times the gaps between
them; with speculation a chunk brings as many tokens as the step committed. So the server is asked
for its token count in every chunk, and for the details of speculation at the end.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import aiohttp
import msgspec

from dflash_sglang.bench.client import Message
from dflash_sglang.bench.errors import BenchError

_LONGEST_LINE = 2**20
# Seconds. SGLang closes a connection that was idle for 5, and a request that is written at that
# moment breaks; modes that take turns leave connections idle for about so long.
_IDLE_CONNECTION = 1.0
_REQUEST_TIMEOUT = 1800  # seconds


class Sampling(NamedTuple):
    """What is asked of the server beside the messages."""

    temperature: float  # 0 is greedy
    max_tokens: int
    seed: int
    ignore_eos: bool


class Stream(NamedTuple):
    """What came back. Times are seconds since the request was sent."""

    text: str
    prompt_tokens: int
    tokens: int
    finish_reason: str
    chunk_s: list[float]
    chunk_tokens: list[int]
    total_s: float
    verify_steps: int
    accept_histogram: list[int]

    @property
    def digest(self) -> str:
        """Equal for equal texts."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _SpecDetails(msgspec.Struct):
    spec_verify_ct: int = 0
    spec_correct_drafts_histogram: list[int] = []


class _Extension(msgspec.Struct):
    spec_tokens_details: _SpecDetails | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    sglext: _Extension | None = None
    error: Any = None


def open_session() -> aiohttp.ClientSession:
    """A session for any number of streams at once."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_CONNECTION),
        timeout=aiohttp.ClientTimeout(total=_REQUEST_TIMEOUT),
        read_bufsize=_LONGEST_LINE,
    )


async def model_name(session: aiohttp.ClientSession, url: str) -> str:
    """Name of the model that a server serves.

    Raises:
        BenchError: nothing answers there, or no OpenAI server.
    """
    try:
        async with session.get(f"{url}/v1/models") as response:
            response.raise_for_status()
            return (await response.json())["data"][0]["id"]
    except (aiohttp.ClientError, TimeoutError, KeyError, IndexError) as error:
        raise BenchError(
            f"no OpenAI-compatible server answers at {url} ({error}): start one with "
            "`dflash2 serve`, or leave out --url and let the benchmark start its own."
        ) from error


async def stream_chat(
    session: aiohttp.ClientSession,
    url: str,
    model: str,
    messages: list[Message],
    sampling: Sampling,
) -> Stream:
    """Send one chat request and read its answer to the end.

    Raises:
        BenchError: the server refused, failed on the way, or does not count its tokens.
    """
    body = {
        "model": model,
        "messages": messages,
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "seed": sampling.seed,
        "ignore_eos": sampling.ignore_eos,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "return_spec_tokens_details": True,
    }
    sent = time.perf_counter()
    parts: list[str] = []
    chunk_s: list[float] = []
    chunk_tokens: list[int] = []
    usage, details, finish_reason = _Usage(), _SpecDetails(), ""
    async for chunk in _chunks(session, url, body):
        now = time.perf_counter() - sent
        if chunk.sglext is not None and chunk.sglext.spec_tokens_details is not None:
            details = chunk.sglext.spec_tokens_details
        for choice in chunk.choices:
            parts.append(choice.delta.content or choice.delta.reasoning_content or "")
            finish_reason = choice.finish_reason or finish_reason
        if chunk.usage is not None:
            fresh = chunk.usage.completion_tokens - usage.completion_tokens
            if fresh > 0:
                chunk_s.append(now)
                chunk_tokens.append(fresh)
            usage = chunk.usage
    total = time.perf_counter() - sent
    if not chunk_s:
        raise BenchError(
            f"the server at {url} reported no tokens: it must understand "
            "stream_options.include_usage and continuous_usage_stats."
        )
    return Stream(
        text="".join(parts),
        prompt_tokens=usage.prompt_tokens,
        tokens=usage.completion_tokens,
        finish_reason=finish_reason,
        chunk_s=chunk_s,
        chunk_tokens=chunk_tokens,
        total_s=total,
        verify_steps=details.spec_verify_ct,
        accept_histogram=details.spec_correct_drafts_histogram,
    )


async def _chunks(
    session: aiohttp.ClientSession, url: str, body: dict[str, Any]
) -> AsyncIterator[_Chunk]:
    """The server-sent events of a request, until it says that it is done."""
    decode = msgspec.json.Decoder(_Chunk).decode
    try:
        async with session.post(f"{url}/v1/chat/completions", json=body) as response:
            if response.status != 200:
                raise BenchError(
                    f"the server at {url} answered {response.status}: "
                    f"{(await response.text()).strip()[:500]}"
                )
            async for line in response.content:
                if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                    continue
                chunk = decode(line[6:])
                if chunk.error is not None:
                    raise BenchError(f"the server at {url} failed while answering: {chunk.error}")
                yield chunk
    except (aiohttp.ClientError, TimeoutError) as error:
        raise BenchError(f"the connection to {url} broke: {error!r}.") from error
