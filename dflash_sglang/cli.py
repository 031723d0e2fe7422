"""The command ``dflash2``. Each subcommand imports what it needs, so that ``--help`` is instant."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from dflash_sglang.bench.commands import app as bench
from dflash_sglang.bench.roofline_command import roofline

app = typer.Typer(
    name="dflash2",
    help="DFlash 2 speculative decoding for stock SGLang.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.add_typer(bench, name="bench")
app.command()(roofline)

_PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True}


def main() -> None:
    """Entry point: an error that the user can mend is one sentence and exit code 1."""
    from dflash_sglang.bench.server import ServerError

    try:
        app()
    except (ValueError, ServerError) as error:
        _fail(str(error))


@app.command(context_settings=_PASS_THROUGH)
def serve(
    context: typer.Context,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the resolved options and stop.")
    ] = False,
) -> None:
    """Start SGLang's server with dflash2; every further flag is SGLang's own.

    Example: dflash2 serve --model-path Qwen/Qwen3-4B --speculative-draft z-lab/Qwen3-4B-DFlash2
    """
    from dflash_sglang import serving

    arguments = serving.complete_arguments(context.args)
    if dry_run:
        typer.echo(serving.describe(arguments))
        return
    serving.launch(arguments)


@app.command()
def demo(
    target: Annotated[Path | None, typer.Option(help="Another target's checkpoint.")] = None,
    drafter: Annotated[Path | None, typer.Option(help="Another drafter's checkpoint.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Greatest length of an answer.")] = 128,
    json: Annotated[Path | None, typer.Option(help="Write the figures to this file.")] = None,
) -> None:
    """Chat with the demo pair, with and without speculation, and compare the tokens.

    Example: dflash2 demo --json demo.json
    """
    from dflash_sglang.demo import run

    identical = run.run(
        target or run.PAIR / "target", drafter or run.PAIR / "drafter", max_tokens, json
    )
    if not identical:
        _fail("An answer differs with speculation; `dflash2 doctor` shows the installation.")


@app.command()
def doctor() -> None:
    """Check SGLang's version and names, the device, the kernels, and say what would be used."""
    from dflash_sglang import diagnosis

    if not diagnosis.print_diagnosis():
        raise typer.Exit(1)


@app.command()
def inspect(
    checkpoint: Annotated[Path, typer.Argument(help="The drafter's folder.")],
    target: Annotated[Path | None, typer.Option(help="The target it should fit.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Describe a drafter: size, block, taps, convolution; with a target, everything that misfits.

    Example: dflash2 inspect drafter/ --target Qwen3-4B/
    """
    from dflash_sglang import inspection

    if not inspection.print_inspection(checkpoint, target, as_json=json):
        raise typer.Exit(1)


@app.command(context_settings=_PASS_THROUGH, add_help_option=False)
def capture(context: typer.Context) -> None:
    """Let a target answer prompts; its text and features are what a drafter is trained on."""
    _training(context)


@app.command(context_settings=_PASS_THROUGH, add_help_option=False)
def train(context: typer.Context) -> None:
    """Train a drafter on captured text; watch its held-out accept length."""
    _training(context)


@app.command(context_settings=_PASS_THROUGH, add_help_option=False)
def evaluate(context: typer.Context) -> None:
    """Measure a drafter's accept length: chain and tree, greedy and sampled."""
    _training(context)


def _training(context: typer.Context) -> NoReturn:
    # Its commands need torch and transformers to be declared, and --help should be instant.
    from dflash_sglang.train.__main__ import main as training_main

    sys.exit(training_main([context.info_name or "", *context.args]))


def _fail(sentence: str) -> NoReturn:
    typer.echo(sentence, err=True)
    sys.exit(1)


if __name__ == "__main__":
    main()
