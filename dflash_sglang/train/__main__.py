"""`python -m dflash_sglang.train COMMAND`: capture, train, evaluate, vocabulary."""

from __future__ import annotations

import sys

import typer

from dflash_sglang.drafter.vocabulary import VocabularyError

from .commands import capture_command, evaluate_command, train_command
from .errors import DataError, TargetError, TrainingError
from .vocabulary import vocabulary_command


def main(argv: list[str] | None = None) -> int:
    """Run one command; a mistake of the user's is one sentence and exit code 2."""
    app = typer.Typer(add_completion=False, no_args_is_help=True)
    app.command("capture")(capture_command)
    app.command("train")(train_command)
    app.command("evaluate")(evaluate_command)
    app.command("vocabulary")(vocabulary_command)
    try:
        app(argv, standalone_mode=False)
    except (DataError, TargetError, TrainingError, VocabularyError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
