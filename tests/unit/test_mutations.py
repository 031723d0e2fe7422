"""The list of mutations cannot rot: each still fits its line, and its test still exists."""

from __future__ import annotations

import ast

import pytest

from tests.mutations.__main__ import is_caught
from tests.mutations.catalogue import MUTATIONS, NOT_BROKEN_HERE, Mutation
from tests.mutations.trial import ROOT, MutationError, Outcome, apply

each = pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)


@each
def test_a_mutation_breaks_exactly_one_place_and_still_parses(mutation: Mutation) -> None:
    source = (ROOT / mutation.file).read_text(encoding="utf-8")
    broken = apply(mutation, source)
    assert broken != source
    if mutation.file.endswith(".py"):
        ast.parse(broken)


@each
def test_the_test_that_catches_it_exists(mutation: Mutation) -> None:
    path, _, name = mutation.test.partition("::")
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    tests = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert not name or name.partition("[")[0] in tests


def test_every_case_is_broken_or_says_why_not() -> None:
    broken = {mutation.case for mutation in MUTATIONS} - {None}
    assert broken | NOT_BROKEN_HERE.keys() == set(range(1, 16))
    assert not broken & NOT_BROKEN_HERE.keys()


def test_names_tell_mutations_apart() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)


@pytest.mark.parametrize("source", ["", "a = 1\na = 1\n"])
def test_a_line_that_is_gone_or_doubled_is_refused(source: str) -> None:
    mutation = Mutation("m", None, "f.py", "a = 1", "a = 2", "t")
    with pytest.raises(MutationError, match=r"expects its original text once in f\.py, found it"):
        apply(mutation, source)


@pytest.mark.parametrize(
    ("intact", "broken", "caught"),
    [
        (Outcome.PASSED, Outcome.FAILED, True),
        (None, Outcome.FAILED, True),
        (Outcome.PASSED, Outcome.TIMED_OUT, True),
        (None, Outcome.TIMED_OUT, False),
        (Outcome.FAILED, Outcome.FAILED, False),
        (Outcome.PASSED, Outcome.PASSED, False),
        (Outcome.PASSED, Outcome.NOT_RUN, False),
    ],
)
def test_a_break_is_caught_where_the_test_failed_for_it(intact, broken, caught):
    """Too slow a machine lets a test run out of time without any break."""
    assert is_caught(intact, broken) is caught
