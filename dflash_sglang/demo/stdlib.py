"""Functions of Python's standard library, read from the sources that every Python carries.

The sources are under the PSF licence, which permits redistribution and derivatives.
"""

from __future__ import annotations

import ast
import sysconfig
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import NamedTuple

from dflash_sglang.demo.sample import Sample, dialogue

_SKIPPED = {"test", "tests", "idlelib", "lib2to3", "site-packages", "turtledemo", "ensurepip",
            "__pycache__", "encodings", "pydoc_data"}  # fmt: skip
MIN_CHARS, MAX_CHARS = 120, 1100


class LibraryFunction(NamedTuple):
    module: str  # "json.decoder"
    name: str  # "Class.method" or "function"
    source: str  # dedented, comments kept


def _functions(path: Path, module: str) -> Iterator[LibraryFunction]:
    text = path.read_text(encoding="utf-8", errors="ignore")
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    lines = text.splitlines()

    def visit(body: list[ast.stmt], prefix: str) -> Iterator[LibraryFunction]:
        for node in body:
            if isinstance(node, ast.ClassDef):
                yield from visit(node.body, f"{node.name}.")
            elif isinstance(node, ast.FunctionDef):
                source = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
                if MIN_CHARS <= len(source) <= MAX_CHARS and source.isascii():
                    yield LibraryFunction(module, prefix + node.name, source)

    yield from visit(tree.body, "")


@cache
def library_functions() -> tuple[LibraryFunction, ...]:
    """Every function of fitting length in the standard library, in a fixed order."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found: list[LibraryFunction] = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if not _SKIPPED.intersection(parts):
            found.extend(_functions(path, ".".join(p for p in parts if p != "__init__")))
    return tuple(found)


def library_function(rng: Random) -> Sample:
    f = rng.choice(library_functions())
    kind = "method" if "." in f.name else "function"
    prompt = rng.choice(
        [
            f"Show me the {kind} {f.name} of the module {f.module}.",
            f"How is {f.name} written in the Python module {f.module}?",
        ]
    )
    answer = (
        f"This is the {kind} `{f.name}` of the module `{f.module}`:\n\n```python\n{f.source}\n```"
    )
    return dialogue("library", (f.module, f.name), prompt, answer)
