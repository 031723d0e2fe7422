"""Where an artefact comes from: command, versions, source revision, seed, data."""

from __future__ import annotations

import json
import platform
import shlex
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from dflash_sglang.revision import git_revision

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


def write_provenance(folder: Path, **facts: Any) -> None:
    """Write `provenance.json` beside an artefact: the common facts and the caller's own."""
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    common = {"command": command, "versions": library_versions(), "git_revision": git_revision()}
    write_text(folder / PROVENANCE, json.dumps(common | facts, indent=2) + "\n")
