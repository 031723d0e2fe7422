"""Each node of a tree is masked by the grammar's state behind that node's own path."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.constrained.base_grammar_backend import BaseGrammarObject
from sglang.srt.constrained.llguidance_backend import GuidanceBackend
from sglang.srt.constrained.reasoner_grammar_backend import ReasonerGrammarObject
from sglang.srt.constrained.xgrammar_backend import XGrammarGrammarBackend

from dflash_sglang.engine.grammar import copy_trees, node_masks
from dflash_sglang.tree import DraftTree, make_layout
from tests.engine.checkpoints import VOCAB
from tests.engine.tokenizers import character_tokenizer

TOKENIZER = character_tokenizer()
END = TOKENIZER.eos_token_id


@pytest.fixture(autouse=True)
def uncompiled():
    """llguidance applies its masks with a compiled function, which takes long to compile."""
    with torch.compiler.set_stance("force_eager"):
        yield


@pytest.fixture(scope="module", params=["xgrammar", "llguidance"])
def backend(request):
    if request.param == "xgrammar":
        return XGrammarGrammarBackend(TOKENIZER, VOCAB, model_eos_token_ids=[END])
    return GuidanceBackend(TOKENIZER, n_vocab=VOCAB)


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


def tree_of(anchor: str, paths: list[str | list[int]]) -> DraftTree:
    """A draft tree with a node for the last character of each path; its parent comes before it."""
    tokens = [ids(anchor)[-1]]
    parents, nodes = [-1], {(): 0}
    for path in paths:
        path = tuple(ids(path) if isinstance(path, str) else path)
        parents.append(nodes[path[:-1]])
        nodes[path] = len(tokens)
        tokens.append(path[-1])
    depths = [0, *(len(path) for path in list(nodes)[1:])]
    count = torch.tensor([len(tokens)])
    as_row = [torch.tensor([values]) for values in (tokens, parents, depths)]
    return DraftTree(*as_row, torch.zeros(1, len(tokens)), count)


def allowed_at_nodes(grammar: BaseGrammarObject, tree: DraftTree) -> list[set[int]]:
    """Tokens with a finite logit at each node."""
    batch = SimpleNamespace(
        has_grammar=True,
        reqs=[SimpleNamespace(grammar=grammar)],
        sampling_info=SimpleNamespace(vocab_size=VOCAB, grammar_mask="a prefill's"),
        device="cpu",
    )
    layout = make_layout(tree, torch.zeros(1, dtype=torch.int64))
    mask = node_masks(batch, copy_trees(batch, tree, layout), barrier=None)
    logits = torch.zeros(tree.tokens.shape[1], VOCAB)
    mask.apply(logits)
    return [set(row.isfinite().nonzero().flatten().tolist()) for row in logits]


def allowed_behind(grammar: BaseGrammarObject, tokens: list[int]) -> set[int]:
    """Tokens with a finite logit behind some tokens of a fresh grammar, as plain decoding masks."""
    grammar = grammar.copy()
    for token in tokens:
        grammar.accept_token(token)
    bits = grammar.allocate_vocab_mask(VOCAB, 1, "cpu")
    grammar.fill_vocab_mask(bits, 0)
    logits = torch.zeros(1, VOCAB)
    grammar.apply_vocab_mask(logits=logits, vocab_mask=bits)
    return set(logits[0].isfinite().nonzero().flatten().tolist())


def test_every_node_allows_what_its_own_path_allows(backend):
    grammar = backend.dispatch_regex(r"a(b|cd|ce+)f")
    paths = ["b", "c", "bf", "cd", "ce", "cee"]
    tree = tree_of("a", paths)
    running = grammar.copy()
    running.accept_token(ids("a")[0])
    got = allowed_at_nodes(running, tree)
    for path, allowed in zip(["", *paths], got, strict=True):
        assert allowed == allowed_behind(grammar, ids("a" + path)), path
    # Back where it was: the next step's tree starts from the same state.
    assert allowed_at_nodes(running, tree) == got


def test_a_path_that_breaks_the_grammar_masks_nothing_behind_it(backend):
    grammar = backend.dispatch_regex(r"ab+")
    grammar.accept_token(ids("a")[0])
    got = allowed_at_nodes(grammar, tree_of("a", ["b", "x", "xb", "bb"]))
    assert ids("x")[0] not in got[0], "the walk never goes there"
    assert got[2] == got[3] == set(range(VOCAB))
    assert got[4] == {ids("b")[0], END}


def test_a_window_past_the_end_of_the_grammar_is_no_error(backend):
    """The drafter proposes the end token and goes on behind it."""
    grammar = backend.dispatch_regex(r"ab")
    grammar.accept_token(ids("a")[0])
    b = ids("b")[0]
    got = allowed_at_nodes(grammar, tree_of("a", [[b], [b, END], [b, END, b], [b, b]]))
    assert got[0] == {b}
    assert got[1] == {END}
    assert not grammar.is_terminated()
    grammar.accept_token(b)
    grammar.accept_token(END)
    assert grammar.is_terminated()


def test_a_finished_grammar_masks_nothing(backend):
    """Its request is about to end, one step late under the overlap scheduler."""
    grammar = backend.dispatch_regex(r"a")
    for token in (ids("a")[0], END):
        grammar.accept_token(token)
    got = allowed_at_nodes(grammar, tree_of("a", ["b"]))
    assert got == [set(range(VOCAB))] * 2


def test_a_json_schema_masks_every_node(backend):
    grammar = backend.dispatch_json('{"type": "array", "items": {"type": "boolean"}}')
    grammar.accept_token(ids("[")[0])
    paths = ["t", "]", "f", "tr", "fa"]
    for path, allowed in zip(
        ["", *paths], allowed_at_nodes(grammar, tree_of("[", paths)), strict=True
    ):
        fresh = backend.dispatch_json('{"type": "array", "items": {"type": "boolean"}}')
        assert allowed == allowed_behind(fresh, ids("[" + path)), path


def test_a_grammar_that_waits_for_the_end_of_reasoning_waits_on_every_branch(backend):
    end_of_thinking = ids("!")
    grammar = ReasonerGrammarObject(backend.dispatch_regex(r"ab+"), end_of_thinking)
    grammar.maybe_init_reasoning(True)
    running = grammar.copy()
    running.accept_token(ids("x")[0])
    paths = ["y", "!", "!a", "!ab", "y!", "y!a"]
    got = allowed_at_nodes(running, tree_of("x", paths))
    for path, allowed in zip(["", *paths], got, strict=True):
        assert allowed == allowed_behind(grammar, ids("x" + path)), path


def test_a_batch_without_grammars_copies_nothing():
    assert copy_trees(SimpleNamespace(has_grammar=False), None, None) is None
