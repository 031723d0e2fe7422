"""Tiny checkpoints and the servers over them, made once a session."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash_sglang.bench.server import Server, running
from dflash_sglang.drafter.vocabulary import write_draft_vocabulary
from tests.engine.checkpoints import LISTED, save_random_drafter, save_target
from tests.engine.servers import CROWDED, SEEDED, Pair, Trio, plain_server, speculative_server
from tests.engine.tokenizers import save_tokenizer

SHARED = {"trio", "seeded", "crowded"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests on shared servers come last: those stay to the end, and a server takes 2 GB."""
    items.sort(key=lambda item: not SHARED.isdisjoint(getattr(item, "fixturenames", ())))


@pytest.fixture(scope="session")
def tiny_drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_drafter(tmp_path_factory.mktemp("drafter"))


@pytest.fixture(scope="session")
def tiny_qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target with a tokenizer."""
    folder = save_target("qwen3", tmp_path_factory.mktemp("qwen3"))
    save_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def trio(tiny_qwen3, tiny_drafter, tmp_path_factory) -> Iterator[Trio]:
    """The chain is made of a part of the vocabulary, the tree of all of it."""
    listed = tmp_path_factory.mktemp("vocabulary") / "listed.json"
    write_draft_vocabulary(listed, LISTED)
    servers = Trio(
        plain_server(tiny_qwen3),
        speculative_server(
            tiny_qwen3,
            tiny_drafter,
            *("--speculative-eagle-topk", "1", "--speculative-token-map", str(listed)),
        ),
        speculative_server(
            tiny_qwen3,
            tiny_drafter,
            *("--speculative-num-draft-tokens", "16", "--speculative-eagle-topk", "12"),
        ),
    )
    with running(*servers):
        yield servers


@pytest.fixture(scope="session")
def seeded(tiny_qwen3, tiny_drafter) -> Iterator[Pair]:
    """Servers on which a seed decides the tokens.

    The one that is compared with runs without the overlap scheduler: with it, SGLang's penalizers
    and custom processors do not see the newest token (see docs/losslessness.md).
    """
    pair = Pair(
        plain_server(tiny_qwen3, "--disable-overlap-schedule", *SEEDED),
        speculative_server(tiny_qwen3, tiny_drafter, "--speculative-eagle-topk", "12", *SEEDED),
    )
    with running(*pair):
        yield pair


@pytest.fixture(scope="session")
def crowded(tiny_qwen3, tiny_drafter) -> Iterator[Server]:
    """Little KV for many requests, whose prompts are read in chunks beside running ones."""
    server = speculative_server(
        tiny_qwen3,
        tiny_drafter,
        *CROWDED,
        *("--max-total-tokens", "1500", "--max-running-requests", "12"),
        "--enable-return-hidden-states",
    )
    with server:
        yield server
