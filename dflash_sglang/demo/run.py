"""``dflash2 demo``: the same chats with and without speculation, side by side."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.panel import Panel
from rich.progress import track
from rich.table import Table

from dflash_sglang.bench.client import Client, Completion, Message
from dflash_sglang.bench.server import Server, cpu_arguments, running

PAIR = Path(__file__).parent / "pair"

_ROUNDS = 3
_WARM_UP_TOKENS = 16

QUESTIONS: tuple[str, ...] = (
    "Write a Python function that checks whether a number is prime.",
    "Write a Python script with argparse that takes --port, --input and --count and prints them.",
    "Write a SQL query for the average age per city in customers, only the first 5 rows.",
    "Write a JSON Schema for a book with title, author, year and pages.",
    "Tell me about the wolf.",
    "What is the capital of France?",
)


class Answer(NamedTuple):
    """What one server said; the times are the best of the rounds."""

    completion: Completion
    first_token_seconds: float  # of the same request for one token

    @property
    def decoded(self) -> int:
        """Tokens behind the first one, which is the prefill's."""
        return len(self.completion.token_ids) - 1

    @property
    def decode_seconds(self) -> float:
        return self.completion.seconds - self.first_token_seconds


class PairOfAnswers(NamedTuple):
    """One question, answered by both servers."""

    question: str
    plain: Answer
    speculative: Answer

    @property
    def identical(self) -> bool:
        return self.plain.completion.token_ids == self.speculative.completion.token_ids


def run(target: Path, drafter: Path, max_tokens: int, report: Path | None) -> bool:
    """Answer every question on two servers in turn, print what came and what it cost.

    Args:
        target: checkpoint of the target model.
        drafter: checkpoint of its drafter.
        max_tokens: greatest length of an answer, in tokens.
        report: file for the figures as JSON.

    Returns:
        True if every answer is token for token the same with and without speculation.
    """
    for folder in (target, drafter):
        if not (folder / "config.json").is_file():
            raise ValueError(
                f"no checkpoint in {folder}: make the demo pair with `bash launch/train_demo.sh`, "
                "or name your own with --target and --drafter."
            )
    console = Console()
    base = ["--model-path", str(target), "--dtype", "float32", *cpu_arguments()]
    spec = ["--speculative-algorithm", "dflash2", "--speculative-draft", str(drafter)]
    console.print("Starting two servers, one without speculation and one with dflash2 ...")
    plain, speculative = Server(base), Server([*base, *spec])
    with running(plain, speculative):
        answers = list(_ask(Client(plain), Client(speculative), max_tokens))
    for answer in answers:
        text = answer.speculative.completion.text.strip()
        console.print(Panel(text, title=answer.question))
    figures = summarise(answers)
    console.print(_table(figures))
    if report is not None:
        report.write_text(json.dumps(figures, indent=2) + "\n")
    return bool(figures["identical"])


def summarise(answers: list[PairOfAnswers]) -> dict[str, Any]:
    """The figures of a run, as ``--json`` writes them."""
    plain = _tokens_per_second([answer.plain for answer in answers])
    speculative = _tokens_per_second([answer.speculative for answer in answers])
    steps = sum(answer.speculative.completion.verify_steps for answer in answers)
    seconds = sum(answer.speculative.decode_seconds for answer in answers)
    decoded = sum(answer.speculative.decoded for answer in answers)
    return {
        "baseline": {"tokens_per_s": plain},
        "dflash2": {
            "tokens_per_s": speculative,
            "accept_length": decoded / steps if steps else None,
            "verify_steps": steps,
        },
        "identical": all(answer.identical for answer in answers),
        "speedup": speculative / plain,
        # What a step of draft, tree and verification costs, in steps of plain decoding.
        "plain_steps_per_verify_step": seconds / steps * plain if steps else None,
    }


def _tokens_per_second(answers: list[Answer]) -> float:
    """Decoding speed: the first token and its time do not count."""
    return sum(a.decoded for a in answers) / sum(a.decode_seconds for a in answers)


def _ask(plain: Client, speculative: Client, max_tokens: int) -> Iterator[PairOfAnswers]:
    clients, lengths = (plain, speculative), (1, max_tokens)
    for client in clients:
        client.chat(_messages(QUESTIONS[0]), max_tokens=_WARM_UP_TOKENS)
    for question in track(QUESTIONS, description="Asking both"):
        # In turn, so that a machine whose speed drifts is the same to both.
        rounds = [
            [client.chat(_messages(question), max_tokens=n) for client in clients for n in lengths]
            for _ in range(_ROUNDS)
        ]
        first, full, first_speculative, full_speculative = (
            min(column, key=_seconds) for column in zip(*rounds, strict=True)
        )
        yield PairOfAnswers(
            question,
            plain=Answer(full, first.seconds),
            speculative=Answer(full_speculative, first_speculative.seconds),
        )


def _seconds(completion: Completion) -> float:
    return completion.seconds


def _messages(question: str) -> list[Message]:
    return [{"role": "user", "content": question}]


def _table(figures: dict[str, Any]) -> Table:
    spec = figures["dflash2"]
    table = Table("", "without", "with dflash2", title="Decoding, measured on this machine in turn")
    table.add_row(
        "tokens/s", f"{figures['baseline']['tokens_per_s']:.1f}", f"{spec['tokens_per_s']:.1f}"
    )
    table.add_row("tokens per verify step", "1", f"{spec['accept_length']:.2f}")
    table.add_row("cost of a step", "1", f"{figures['plain_steps_per_verify_step']:.2f}")
    table.add_row("speedup", "", f"{figures['speedup']:.2f}x")
    table.add_row("identical tokens", "", "yes" if figures["identical"] else "NO")
    return table
