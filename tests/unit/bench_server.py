"""A stand-in for SGLang's chat endpoint whose timing is known to the millisecond."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from aiohttp import web


class Behaviour(NamedTuple):
    """How every request is answered."""

    first_s: float = 0.05  # until the first token
    gap_s: float = 0.02  # between chunks
    chunks: tuple[int, ...] = (1, 3, 2)  # tokens of each
    histogram: tuple[int, ...] = (0, 1, 1)  # of accepted drafts; empty: no speculation
    counts_tokens: bool = True
    fails_with: str | None = None  # an error in the middle of the stream
    fails_after: int = 0  # requests that are answered well before
    metrics: tuple[str, ...] = ()  # lines of /metrics, {n} being the requests so far; empty: none


class FakeServer:
    """Counts what it was asked, and how many requests it answered at once."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.bodies: list[dict[str, Any]] = []
        self.arrivals: list[float] = []
        self.connections: set[int] = set()  # client ports
        self.flushes = 0
        self.most_at_once = 0
        self.url = ""
        self._at_once = 0

    async def chat(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json())
        self.arrivals.append(asyncio.get_running_loop().time())
        self.connections.add(request.get_extra_info("peername")[1])
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await self._answer(response)
        self._at_once -= 1
        return response

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "fake"}]})

    async def flush(self, _: web.Request) -> web.Response:
        self.flushes += 1
        return web.Response()

    async def loads(self, _: web.Request) -> web.Response:
        return web.json_response({"loads": [{"num_used_tokens": 7}]})

    async def metrics(self, _: web.Request) -> web.Response:
        if not self.behaviour.metrics:
            raise web.HTTPNotFound
        lines = [line.format(n=len(self.bodies)) for line in self.behaviour.metrics]
        return web.Response(text="\n".join(lines) + "\n")

    async def _answer(self, response: web.StreamResponse) -> None:
        behaviour = self.behaviour
        await asyncio.sleep(behaviour.first_s)
        # SGLang announces the role in a chunk without usage.
        await _send(response, {"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        tokens = 0
        for index, count in enumerate(behaviour.chunks):
            if index:
                await asyncio.sleep(behaviour.gap_s)
            failing = len(self.bodies) > behaviour.fails_after
            if behaviour.fails_with is not None and failing and index == 1:
                await _send(response, {"error": {"message": behaviour.fails_with}})
                return
            tokens += count
            usage = {"prompt_tokens": 5, "completion_tokens": tokens}
            chunk = {"choices": [{"delta": {"content": "x" * count}}]}
            await _send(
                response, {**chunk, **({"usage": usage} if behaviour.counts_tokens else {})}
            )
        await _send(response, {"choices": [{"delta": {}, "finish_reason": "length"}]})
        if behaviour.histogram:
            details = {
                "spec_verify_ct": sum(behaviour.histogram),
                "spec_correct_drafts_histogram": list(behaviour.histogram),
            }
            await _send(response, {"choices": [], "sglext": {"spec_tokens_details": details}})
        if behaviour.counts_tokens:
            usage = {"prompt_tokens": 5, "completion_tokens": tokens}
            await _send(response, {"choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")


@contextmanager
def serving(behaviour: Behaviour) -> Iterator[FakeServer]:
    """The server in a thread with an event loop of its own, so that nobody's timing disturbs it."""
    fake = FakeServer(behaviour)
    loop = asyncio.new_event_loop()
    runner = web.AppRunner(_application(fake))
    ready = threading.Event()

    async def start() -> None:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        ready.set()

    def serve() -> None:
        loop.run_until_complete(start())
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        assert ready.wait(10)
        yield fake
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


def _application(fake: FakeServer) -> web.Application:
    application = web.Application()
    application.router.add_post("/v1/chat/completions", fake.chat)
    application.router.add_get("/v1/models", fake.models)
    application.router.add_get("/v1/loads", fake.loads)
    application.router.add_get("/metrics", fake.metrics)
    application.router.add_post("/flush_cache", fake.flush)
    return application


async def _send(response: web.StreamResponse, chunk: dict[str, Any]) -> None:
    await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
