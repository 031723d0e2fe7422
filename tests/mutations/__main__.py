"""The command: tries mutations and prints which test caught which."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tests.mutations.catalogue import MUTATIONS, NOT_BROKEN_HERE, Mutation
from tests.mutations.trial import PATIENCE, Outcome, apply, copy_tree, first_complaint, run_test


def main(
    names: Annotated[list[str] | None, typer.Argument(help="parts of names; all if none")] = None,
    intact: Annotated[
        bool, typer.Option(help="first see every test pass on an unbroken copy")
    ] = True,
    patience: Annotated[
        float, typer.Option(help="seconds after which a test counts as hanging")
    ] = PATIENCE,
) -> None:
    """Break a copy of the tree in one line after the other."""
    chosen = [
        mutation
        for mutation in MUTATIONS
        if not names or any(name in mutation.name for name in names)
    ]
    if not chosen:
        raise typer.BadParameter(
            f"no mutation's name holds {' or '.join(names or ())}; there are: "
            + "; ".join(mutation.name for mutation in MUTATIONS)
        )
    console = Console()
    table = Table("case", "a build that", "test", "intact", "broken")
    unnoticed = 0
    with tempfile.TemporaryDirectory(prefix="dflash2-mutations-") as folder:
        trials = Trials(Path(folder), patience)
        for mutation in chosen:
            before = trials.intact(mutation.test) if intact else None
            after, complaint = trials.broken(mutation)
            caught = is_caught(before, after)
            unnoticed += not caught
            table.add_row(
                "" if mutation.case is None else str(mutation.case),
                mutation.name,
                mutation.test.removeprefix("tests/"),
                before or "",
                f"{after}: {'caught' if caught else 'NOT CAUGHT'}",
            )
            # The complaint shows that it was the break that was noticed.
            console.print(f"{mutation.name}: {after}: {complaint}", highlight=False, markup=False)
    console.print(table)
    for case, note in NOT_BROKEN_HERE.items():
        console.print(f"Case {case} has no mutation: {note}", highlight=False)
    if unnoticed:
        raise typer.Exit(1)


def is_caught(intact: Outcome | None, broken: Outcome) -> bool:
    """A test that runs out of time proves nothing unless the unbroken build was in time."""
    if broken is Outcome.TIMED_OUT:
        return intact is Outcome.PASSED
    return broken is Outcome.FAILED and intact in (None, Outcome.PASSED)


class Trials:
    """Runs tests on copies of the tree; one on the unbroken copy is run once."""

    def __init__(self, folder: Path, patience: float) -> None:
        self._folder = folder
        self._patience = patience
        self._known: dict[str, Outcome] = {}
        self._count = 0

    def intact(self, test: str) -> Outcome:
        """The test on an unbroken copy."""
        tree = self._folder / "intact"
        if not tree.exists():
            copy_tree(tree)
        if test not in self._known:
            self._known[test] = run_test(tree, test, self._folder / "intact.log", self._patience)
        return self._known[test]

    def broken(self, mutation: Mutation) -> tuple[Outcome, str]:
        """The mutation's test on a copy with the mutation, and what the test complained of."""
        self._count += 1
        tree = self._folder / f"broken-{self._count}"
        copy_tree(tree)
        file = tree / mutation.file
        file.write_text(apply(mutation, file.read_text(encoding="utf-8")), encoding="utf-8")
        log = self._folder / f"broken-{self._count}.log"
        return run_test(tree, mutation.test, log, self._patience), first_complaint(log)


if __name__ == "__main__":
    typer.run(main)
