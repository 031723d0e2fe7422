"""The servers of a run, all up at the same time so that the modes can take turns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from dflash_sglang.bench.errors import BenchError
from dflash_sglang.bench.modes import PLAIN, Mode
from dflash_sglang.bench.server import Server, ServerError, stop_all

_RAISED = re.compile(r"^(?:\[[^\]]*\] )?(?:[\w.]*\.)?\w*(?:Error|Exception): (.+)$")


class Endpoint(NamedTuple):
    """A server that answers for a mode."""

    mode: Mode
    url: str
    origin: str  # the command that started it, or the URL that was given


class Fleet(NamedTuple):
    """Who answers, and who could not be started and why."""

    endpoints: list[Endpoint]
    refused: dict[Mode, str]


@contextmanager
def running_fleet(servers: dict[Mode, Server], given: dict[Mode, str]) -> Iterator[Fleet]:
    """Start the servers, each when the one before it is up.

    SGLang takes the memory that vanishes while it loads for its own, so servers that load at the
    same time count each other's weights, and large ones then refuse to start.

    A mode whose server does not come up is refused with the server's own reason and the others go
    on; without plain decoding, or with nothing beside it, there is nothing to compare.

    Args:
        servers: to be started here.
        given: URLs of servers that run already.

    Raises:
        ServerError: plain decoding did not start.
        BenchError: no other mode started.
    """
    endpoints = [Endpoint(mode, url.rstrip("/"), url) for mode, url in given.items()]
    refused: dict[Mode, str] = {}
    try:
        for mode, server in servers.items():
            try:
                server.start()
                server.wait()
            except ServerError as error:
                if mode == PLAIN:
                    raise ServerError(
                        f"plain decoding did not start, so there is nothing to compare with: "
                        f"{refusal(server)}\nThe log is {server.log}. Look at --target and "
                        '--server-args (without a GPU: --server-args "--device cpu"); '
                        "`dflash2 doctor` shows what a server would use."
                    ) from error
                refused[mode] = refusal(server)
            else:
                endpoints.append(Endpoint(mode, server.url, server.command))
        if refused and all(endpoint.mode == PLAIN for endpoint in endpoints):
            reasons = "\n".join(f"  {mode}: {reason}" for mode, reason in refused.items())
            raise BenchError(f"no mode but plain could be started:\n{reasons}")
        yield Fleet(sorted(endpoints, key=lambda endpoint: endpoint.mode.rank), refused)
    finally:
        stop_all(servers.values())


def refusal(server: Server) -> str:
    """Why a server did not start: the last error that its log names, and where the log lies."""
    lines = server.log.read_text(errors="replace").splitlines()
    errors = [found.group(1) for line in lines if (found := _RAISED.match(line.strip()))]
    return errors[-1] if errors else f"the server gave no reason; its log is {server.log}."
