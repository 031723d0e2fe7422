"""A SGLang server as a child process: started, awaited, stopped, its log kept."""

from __future__ import annotations

import os
import random
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

import httpx

from dflash_sglang.host import ATTENTION_BACKEND

HOST = "127.0.0.1"
_LOG_TAIL = 15
_PORTS = range(12_000, 20_000)


class ServerError(RuntimeError):
    """A server that did not come up, with the end of its log."""


class Server:
    """Context manager around ``python -m sglang.launch_server``.

    Args:
        arguments: command-line arguments of SGLang's server; host and port are added.
        log: file for the server's output; by default one in the temporary folder, kept on failure.
        startup_timeout: seconds until the server must answer.
        environment: variables set for the server beside this process's own.

    Example:
        >>> with Server(["--model-path", "Qwen/Qwen3-4B"]) as server:  # doctest: +SKIP
        ...     print(server.url)
    """

    def __init__(
        self,
        arguments: list[str],
        *,
        log: Path | None = None,
        startup_timeout: float = 300.0,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.port = free_port()
        self.url = f"http://{HOST}:{self.port}"
        self.log = log or Path(tempfile.mkdtemp(prefix="dflash2-server-")) / "server.log"
        self._command = [
            *(sys.executable, "-m", "sglang.launch_server"),
            *("--host", HOST, "--port", str(self.port)),
            *arguments,
        ]
        self._environment = {**os.environ, **(environment or {})}
        self._startup_timeout = startup_timeout
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def command(self) -> str:
        """The command line, for reports."""
        return shlex.join(["python", *self._command[1:]])

    @property
    def pid(self) -> int:
        """Process id of the launcher."""
        assert self._process is not None, "the server was not started"
        return self._process.pid

    def start(self) -> None:
        """Start the process; :meth:`wait` waits until it answers."""
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(
                self._command,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
                # A group of its own, so that stopping reaches every worker process.
                start_new_session=True,
            )

    def wait(self) -> None:
        """Wait until the server answers.

        Raises:
            ServerError: it exited, or did not answer in time.
        """
        assert self._process is not None, "the server was not started"
        deadline = time.monotonic() + self._startup_timeout
        while not self._answers():
            if self._process.poll() is not None:
                raise ServerError(self._failure(f"exited with code {self._process.returncode}"))
            if time.monotonic() > deadline:
                self.stop()
                raise ServerError(
                    self._failure(f"did not answer within {self._startup_timeout:.0f} s")
                )
            time.sleep(0.5)

    def ask_to_stop(self) -> None:
        """Tell the server to end, without waiting for it."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)

    def stop(self) -> None:
        """End the server and its workers."""
        if self._process is None or self._process.poll() is not None:
            return
        for sign in (signal.SIGTERM, signal.SIGKILL):
            os.killpg(self._process.pid, sign)
            try:
                self._process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                continue
            break
        # Workers outlive a launcher that ends first.
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def log_tail(self, lines: int = _LOG_TAIL) -> str:
        """The last lines of the server's log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def __enter__(self) -> Server:
        self.start()
        try:
            self.wait()
        except BaseException:  # an interrupt too must not leave the process behind
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    def _failure(self, what: str) -> str:
        return f"The server {what}. Its log is {self.log}; it ends with:\n{self.log_tail()}"


@contextmanager
def running(*servers: Server) -> Iterator[None]:
    """All servers at once, started side by side, since most of a start is waiting."""
    try:
        for server in servers:
            server.start()
        for server in servers:
            server.wait()
        yield
    finally:
        stop_all(servers)


def stop_all(servers: Iterable[Server]) -> None:
    """End all servers side by side, since most of an end is waiting too."""
    servers = list(servers)
    for server in servers:
        server.ask_to_stop()
    for server in servers:
        server.stop()


def free_port() -> int:
    """A TCP port of this machine that nobody listens on at the moment.

    Between the asking and the server's listening lie seconds, so the port is drawn from those that
    a system does not give to outgoing connections by itself.

    Raises:
        ServerError: each of a hundred ports tried is in use.
    """
    for port in random.SystemRandom().sample(_PORTS, k=min(100, len(_PORTS))):
        with socket.socket() as probe:
            # A port that merely rests after its last connection is free to a server, too.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind((HOST, port))
                return port
    raise ServerError(f"no free TCP port was found from {_PORTS.start} to {_PORTS.stop - 1}")


def cpu_arguments(max_total_tokens: int = 20_000) -> list[str]:
    """Arguments for a small server on the CPU: bounded KV, and no busy waiting between requests."""
    return [
        *("--device", "cpu"),
        *("--attention-backend", ATTENTION_BACKEND),
        *("--max-total-tokens", str(max_total_tokens)),
        "--sleep-on-idle",
    ]
