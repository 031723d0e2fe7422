"""One mutation tried: a copy of the tree with one line broken, and the test run against it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from enum import StrEnum
from pathlib import Path

from tests.mutations.catalogue import Mutation

ROOT = Path(__file__).parents[2]
_COPIED = ("dflash_sglang", "csrc", "tests", "pyproject.toml")
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "pair", "*.pyc")
PATIENCE = 1200.0  # seconds after which a test counts as hanging
_GRACE = 60.0
_PASSED, _FAILED = 0, 1  # pytest's exit codes; others mean that it could not run the test


class MutationError(ValueError):
    """A mutation that does not fit the source any more."""


class Outcome(StrEnum):
    """What became of a test."""

    PASSED = "passed"
    FAILED = "failed"
    TIMED_OUT = "timed out"
    NOT_RUN = "could not run"


def apply(mutation: Mutation, source: str) -> str:
    """The source with the mutation's line broken.

    Raises:
        MutationError: the original text does not stand there exactly once.
    """
    count = source.count(mutation.original)
    if count != 1:
        raise MutationError(
            f"the mutation {mutation.name!r} expects its original text once in {mutation.file}, "
            f"found it {count} times."
        )
    return source.replace(mutation.original, mutation.broken)


def copy_tree(destination: Path) -> None:
    """What the tests need of the repository."""
    for name in _COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, destination / name, ignore=_LEFT_OUT)
        else:
            shutil.copy(source, destination / name)


def first_complaint(log: Path) -> str:
    """The first line of pytest's report that says what was wrong; empty if none does."""
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("E  "):
            return line[1:].strip()
    return ""


def run_test(tree: Path, test: str, log: Path, patience: float = PATIENCE) -> Outcome:
    """Run one test of a copied tree, with that tree's package before any installed one."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", test]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree)},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(patience)
        except subprocess.TimeoutExpired:
            # Interrupted, so that its fixtures stop their servers.
            process.send_signal(signal.SIGINT)
            try:
                process.wait(_GRACE)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
            return Outcome.TIMED_OUT
    return {_PASSED: Outcome.PASSED, _FAILED: Outcome.FAILED}.get(code, Outcome.NOT_RUN)
