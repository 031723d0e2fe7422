"""What is read beside the requests: KV slots in use, and energy where the platform counts it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

_POLL_S = 1.0  # rarely, since asking costs the scheduler time
_POWERCAP = Path("/sys/class/powercap")


class KVWatch:
    """The greatest number of KV slots that a server reported while it was watched."""

    def __init__(self) -> None:
        self.most: int | None = None

    def see(self, used: int) -> None:
        self.most = max(used, self.most or 0)


@asynccontextmanager
async def watching_kv(session: aiohttp.ClientSession, url: str) -> AsyncIterator[KVWatch]:
    """Ask the server for its load now and then; a server that does not tell leaves None."""
    watch = KVWatch()

    async def poll() -> None:
        while True:
            await asyncio.sleep(_POLL_S)
            async with session.get(f"{url}/v1/loads", params={"include": "core"}) as response:
                if response.status != 200:
                    return
                loads = (await response.json())["loads"]
                watch.see(sum(load["num_used_tokens"] for load in loads))

    task = asyncio.create_task(poll())
    try:
        yield watch
    finally:
        task.cancel()
        # What stopped it early is no reason to lose the answers.
        await asyncio.gather(task, return_exceptions=True)


class EnergyMeter:
    """Joules of the processor packages since the meter was made (Intel and AMD RAPL).

    Whatever else runs on the machine is counted too.
    """

    def __init__(self) -> None:
        self._counters = [folder for folder in _packages() if _readable(folder / "energy_uj")]
        self._start = [_read(folder / "energy_uj") for folder in self._counters]

    def joules(self) -> float | None:
        """Energy so far; None where the platform does not tell."""
        if not self._counters:
            return None
        total = 0
        for folder, start in zip(self._counters, self._start, strict=True):
            now = _read(folder / "energy_uj")
            # The counter wraps around at this value.
            total += (
                now - start if now >= start else now - start + _read(folder / "max_energy_range_uj")
            )
        return total / 1e6


def _packages() -> list[Path]:
    return sorted(
        folder
        for folder in _POWERCAP.glob("intel-rapl:*")
        if folder.name.count(":") == 1 and (folder / "energy_uj").exists()
    )


def _readable(file: Path) -> bool:
    try:
        _read(file)
    except OSError:
        return False
    return True


def _read(file: Path) -> int:
    return int(file.read_text())
