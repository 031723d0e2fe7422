"""Which commit a figure or a checkpoint was made with."""

import subprocess
from pathlib import Path

import pytest

from dflash_sglang import revision


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=tester", "-c", "user.email=tester@example.org")
    command = ["git", "-C", str(folder), *identity, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def module(tmp_path, monkeypatch) -> Path:
    """A module file in a repository with one commit, taken for the one under test."""
    file = tmp_path / "revision.py"
    file.write_text("first\n")
    git(tmp_path, "init")
    monkeypatch.setattr(revision, "__file__", str(file))
    return file


def commit(module: Path) -> str:
    git(module.parent, "add", module.name)
    git(module.parent, "commit", "-m", "one")
    return git(module.parent, "rev-parse", "HEAD")


def test_a_clean_tree_is_its_commit(module):
    head = commit(module)
    assert revision.git_revision() == head


def test_a_changed_tree_says_so(module):
    head = commit(module)
    module.write_text("second\n")
    assert revision.git_revision() == f"{head}+changes"


def test_a_package_installed_inside_another_repository_has_no_revision(module):
    (module.parent / "theirs").write_text("")
    git(module.parent, "add", "theirs")
    git(module.parent, "commit", "-m", "theirs")
    assert revision.git_revision() is None


def test_a_package_outside_a_repository_has_no_revision(tmp_path, monkeypatch):
    monkeypatch.setattr(revision, "__file__", str(tmp_path / "revision.py"))
    assert revision.git_revision() is None
