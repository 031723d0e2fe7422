"""Everything that the package imports is declared, where those who need it find it."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

import dflash_sglang
from tests.unit.test_import_direction import imported

ROOT = Path(dflash_sglang.__file__).parent
PROJECT = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())["project"]
# What a server runs; the other parts may need an extra.
SERVED = ("adaptive", "config", "drafter", "engine", "host", "kernels", "tree", "verify")


def names(requirements):
    """Import names of requirements, which so far are their own names with underscores."""
    return {re.split(r"[^\w-]", text)[0].replace("-", "_") for text in requirements}


def third_party(files):
    tops = {name.split(".")[0] for file in files for name in imported(file)}
    return tops - set(sys.stdlib_module_names) - {"dflash_sglang"}


DEPENDENCIES = names(PROJECT["dependencies"])


@pytest.mark.parametrize("part", SERVED)
def test_what_a_server_imports_comes_with_the_package(part):
    assert third_party((ROOT / part).rglob("*.py")) <= DEPENDENCIES


@pytest.mark.parametrize("part", ["bench", "train"])
def test_what_a_program_imports_comes_with_its_extra(part):
    extra = names(PROJECT["optional-dependencies"][part])
    assert third_party((ROOT / part).rglob("*.py")) <= DEPENDENCIES | extra


def test_the_tests_install_every_extra_of_the_programs():
    extras = PROJECT["optional-dependencies"]
    assert names(extras["bench"]) | names(extras["train"]) <= names(extras["dev"])
