"""Who may import whom, from the lowest part of the package to the command line."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import dflash_sglang

ROOT = Path(dflash_sglang.__file__).parent
_SERVING = {"algorithm", "engine", "host", "plugin", "serving"}
_PROGRAMS = {"audit", "bench", "cli", "demo", "diagnosis", "inspection", "train"}

FORBIDDEN = {
    "kernels": {"adaptive", "drafter", "tree", "verify"} | _SERVING | _PROGRAMS,
    "drafter": _SERVING | _PROGRAMS,
    "tree": _SERVING | _PROGRAMS,
    "verify": _SERVING | _PROGRAMS,
    "adaptive": _SERVING | _PROGRAMS,
    "engine": _PROGRAMS,
    "host": _PROGRAMS,
    "train": _SERVING | {"audit", "bench", "cli"},
    "bench": {"audit", "train"},
}
# Parts that another engine could use.
PURE = ("drafter", "tree", "verify", "adaptive")


def imported(file: Path) -> Iterator[str]:
    """Absolute names of the modules that a file imports, at any depth of its code."""
    package = ["dflash_sglang", *file.relative_to(ROOT).parent.parts]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            within = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*within, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def imports_of(part: str) -> dict[str, set[str]]:
    return {
        str(file.relative_to(ROOT)): set(imported(file)) for file in (ROOT / part).rglob("*.py")
    }


@pytest.mark.parametrize("part", FORBIDDEN)
def test_a_part_imports_nothing_above_it(part):
    upward = {
        (file, name)
        for file, names in imports_of(part).items()
        for name in names
        if name.startswith("dflash_sglang.") and name.split(".")[1] in FORBIDDEN[part]
    }
    assert not upward


@pytest.mark.parametrize("part", PURE)
def test_what_another_engine_could_use_imports_nothing_of_sglang(part):
    assert not {
        (file, name)
        for file, names in imports_of(part).items()
        for name in names
        if name.split(".")[0] in ("sglang", "sgl_kernel")
    }
