"""Where an artefact comes from: command, versions, source revision, seed, data."""

from __future__ import annotations

import json
import platform
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from .store import write_text

PROVENANCE = "provenance.json"
_LIBRARIES = ("torch", "transformers", "accelerate", "safetensors", "dflash-sglang")


def library_versions() -> dict[str, str]:
    """Versions of Python and of the libraries whose numerics matter; absent ones are left out."""
    versions = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def git_revision() -> str | None:
    """Revision of the source tree this package runs from, with "+changes" when it is dirty."""
    here = Path(__file__).parent
    try:
        run = lambda *words: subprocess.run(  # noqa: E731
            ["git", "-C", str(here), *words], capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()
        return run("rev-parse", "HEAD") + ("+changes" if run("status", "--porcelain", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def write_provenance(folder: Path, **facts: Any) -> None:
    """Write `provenance.json` beside an artefact: the common facts and the caller's own."""
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    common = {"command": command, "versions": library_versions(), "git_revision": git_revision()}
    write_text(folder / PROVENANCE, json.dumps(common | facts, indent=2) + "\n")
