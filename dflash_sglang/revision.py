"""The revision of the source tree that this package runs from."""

from __future__ import annotations

import subprocess
from pathlib import Path


def git_revision() -> str | None:
    """The commit, with "+changes" where the package differs from it; None outside a git tree."""
    try:
        # A virtual environment inside somebody's repository is not a tree of ours.
        _git("ls-files", "--error-unmatch", Path(__file__).name)
        changes = "+changes" if _git("status", "--porcelain", ".") else ""
        return _git("rev-parse", "HEAD") + changes
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", "-C", str(Path(__file__).parent), *words],
        capture_output=True,
        text=True,
        check=True,
        timeout=10,
    ).stdout.strip()
