"""Small Python functions that the code samples write, explain, test, rename and repair."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from dflash_sglang.demo.recipes import RECIPES

COLLECTIONS = (("numbers", "number"), ("values", "value"), ("items", "item"))
TEXTS = (("text", "char"), ("word", "letter"), ("line", "char"))
WORDS = (
    "apple",
    "river",
    "level",
    "garden",
    "banana",
    "window",
    "noon",
    "planet",
    "radar",
    "letter",
)


_HINTS = {
    "numbers": "list[int]",
    "text": "str",
    "words": "list[str]",
    "number": "int",
    "pair": "int",
}
_DOCS = {"returns": "Return", "checks": "Check", "counts": "Count", "removes": "Remove",
         "sorts": "Sort", "keeps": "Keep", "multiplies": "Multiply", "adds": "Add",
         "reverses": "Reverse", "repeats": "Repeat", "makes": "Make", "joins": "Join",
         "converts": "Convert", "computes": "Compute", "raises": "Raise"}  # fmt: skip


class Function(NamedTuple):
    """A recipe with its holes filled."""

    name: str
    task: str
    arguments: tuple[str, ...]
    doc: str
    body: str
    hint: str  # annotation of every argument
    over: str

    def source(self, *, name: str = "", hinted: bool = False, documented: bool = True) -> str:
        arguments = ", ".join(f"{a}: {self.hint}" if hinted else a for a in self.arguments)
        lines = [f'"""{self.doc}"""'] * documented + self.body.split("\n")
        indented = "\n".join(f"    {line}" for line in lines)
        return f"def {name or self.name}({arguments}):\n{indented}"

    def call(self, rng: Random, *, name: str = "") -> tuple[str, str]:
        """An example call and the representation of what it returns, by running the source."""
        arguments = _ARGUMENTS[self.over](rng)
        scope: dict[str, Any] = {}
        exec(self.source(name=name), scope)  # our own recipes only
        shown = f"{name or self.name}({', '.join(map(repr, arguments))})"
        return shown, repr(scope[name or self.name](*arguments))


_ARGUMENTS: dict[str, Callable[[Random], tuple[Any, ...]]] = {
    "numbers": lambda rng: ([rng.randint(1, 30) for _ in range(rng.randint(3, 5))],),
    "text": lambda rng: (rng.choice(WORDS),),
    "words": lambda rng: (rng.sample(WORDS, 3),),
    "number": lambda rng: (rng.randint(2, 12),),
    "pair": lambda rng: (rng.randint(2, 30), rng.randint(2, 12)),
}


def draw_function(rng: Random) -> Function:
    """A recipe at random with argument names and constants at random."""
    recipe = rng.choice(RECIPES)
    x, e = "", ""
    if recipe.over == "numbers":
        x, e = rng.choice(COLLECTIONS)
    elif recipe.over == "text":
        x, e = rng.choice(TEXTS)
    elif recipe.over == "words":
        x, e = "words", "word"
    elif recipe.over == "number":
        x = rng.choice(["n", "number", "value"])
    n = rng.choice(recipe.constants) if recipe.constants else 0
    task = recipe.task.format(n=n)
    verb, rest = task.split(" ", 1)
    return Function(
        name=recipe.name.format(n=n),
        task=task,
        arguments=(x,) if x else ("a", "b"),
        doc=f"{_DOCS[verb]} {rest}.",
        body=recipe.body.format(x=x, e=e, n=n),
        hint=_HINTS[recipe.over],
        over=recipe.over,
    )
