"""The machine and the software that a figure was measured with."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from dflash_sglang.bench.provenance import Measured
from dflash_sglang.revision import git_revision

_PACKAGES = ("dflash-sglang", "sglang", "torch", "transformers")


def measured_now(command: str) -> Measured:
    """Provenance of what is about to be measured here by ``command``."""
    return Measured(
        machine=describe_machine(),
        versions=versions(),
        command=command,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def describe_machine() -> str:
    """Processor, cores, memory and accelerators, in one line."""
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    host = f"{_processor()}, {cores} cores, {memory:.0f} GiB"
    return "; ".join([host, *_nvidia_devices()])


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that matter, and the revision of a source tree."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    revision = git_revision()
    if revision is not None:
        found["dflash-sglang"] += f" at {revision}"
    return found


def command_line() -> str:
    """The command of this process, without the folder of the program."""
    return " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _nvidia_devices() -> list[str]:
    if shutil.which("nvidia-smi") is None:
        return []
    answer = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        timeout=30,
    )
    return [line.strip() for line in answer.stdout.splitlines() if line.strip()]
