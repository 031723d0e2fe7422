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
    max_tokens: Annotated[int, typer.Option(min=2, help="Greatest length of an answer.")] = 128,
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


@app.command(context_settings=_PASS_THROUGH)
def audit(
    context: typer.Context,
    baseline: Annotated[str | None, typer.Option(help="URL of a server without dflash2.")] = None,
    candidate: Annotated[str | None, typer.Option(help="URL of a server with dflash2.")] = None,
    target: Annotated[str | None, typer.Option(help="Start both: the target.")] = None,
    drafter: Annotated[str | None, typer.Option(help="Start both: its drafter.")] = None,
    level: Annotated[
        list[str] | None, typer.Option(help="greedy, seeded or law; repeatable; default all.")
    ] = None,
    prompts: Annotated[int, typer.Option(min=1, help="Prompts of the first two levels.")] = 200,
    max_tokens: Annotated[int, typer.Option(min=1, help="Greatest length of an answer.")] = 48,
    temperature: Annotated[
        list[float] | None, typer.Option(help="Repeatable; default 0.3, 0.7, 1 and 1.5.")
    ] = None,
    concurrency: Annotated[
        list[int] | None, typer.Option(min=1, help="Repeatable; default 1 and 8.")
    ] = None,
    generations: Annotated[
        int | None, typer.Option(min=100, help="Of the law test; default what finds a 2 % bias.")
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option(min=0, help="Nats of rounding; default by the dtype.")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write the report to this file.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write one page of HTML.")] = None,
) -> None:
    """Check that dflash2 gives the target's own output; exit code 1 on a defect.

    Compares greedy tokens, tokens under a seed, and the law without one, on two servers that run
    or on two that it starts; every further flag is then SGLang's own.

    Example: dflash2 audit --baseline http://localhost:30000 --candidate http://localhost:30001
    """
    from rich.console import Console

    from dflash_sglang.audit import run
    from dflash_sglang.audit.report import write
    from dflash_sglang.audit.scope import make_scope

    scope = make_scope(
        levels=level,
        temperatures=temperature,
        concurrencies=concurrency,
        prompts=prompts,
        max_tokens=max_tokens,
        generations=generations,
        tolerance=tolerance,
    )
    sides = run.Sides(baseline, candidate, target, drafter, context.args)
    console = Console()
    report = run.audit(sides, scope, console)
    report.print_to(console)
    write(report, json, html)
    if report.defects:
        raise typer.Exit(1)


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


@app.command()
def export(
    drafter: Annotated[Path, typer.Argument(help="The drafter's folder.")],
    engine: Annotated[str, typer.Option("--for", help="The engine that will read it: vllm.")],
    out: Annotated[Path, typer.Option(help="Folder to write; absent or empty.")],
    target: Annotated[
        str, typer.Option(help="Its target: a folder, which it must fit, or a name.")
    ],
    dtype: Annotated[str, typer.Option(help="Of the weights: bfloat16 or stored.")] = "bfloat16",
) -> None:
    """Write a drafter for another engine; print the command and the Python that serve it there.

    Example: dflash2 export drafter/ --for vllm --out drafter-vllm/ --target Qwen/Qwen3-4B
    """
    from dflash_sglang.drafter.export import export_drafter

    written = export_drafter(engine, drafter, out, target, dtype)
    if not written.compared:
        typer.echo(f"{target} is no folder here, so nobody checked that it fits.", err=True)
    typer.echo(f"{written.command}\n\n{written.snippet}")


kernels = typer.Typer(help="The compiled kernels: what runs where, is it right, how fast is it.")
app.add_typer(kernels, name="kernels", no_args_is_help=True)


@kernels.command("list")
def list_kernels() -> None:
    """Show operator x backend; compiles what this machine can use."""
    from dflash_sglang.kernels import report

    report.print_list()


@kernels.command("check")
def check_kernels() -> None:
    """Run every operator of a decode step on every backend and compare with its reference."""
    from dflash_sglang.kernels import examples, report

    if not report.print_check(examples.Sizes()):
        _fail("A kernel differs from its reference; DFLASH2_KERNELS=reference serves without them.")


@kernels.command("bench")
def bench_kernels(
    requests: Annotated[int, typer.Option(min=1, help="Requests of the batch.")] = 8,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes of a draft tree.")] = 32,
    vocabulary: Annotated[int, typer.Option(min=100, help="Size of the vocabulary.")] = 32_000,
    repeats: Annotated[int, typer.Option(min=1, help="Calls of one series.")] = 20,
) -> None:
    """Time every operator of a decode step against its PyTorch reference.

    Example: dflash2 kernels bench --vocabulary 151936
    """
    from dflash_sglang.kernels import examples, report

    sizes = examples.Sizes(bs=requests, nodes=nodes, vocabulary=vocabulary)
    report.print_bench(sizes, repeats)


@kernels.command("goals")
def kernel_goals(
    target: Annotated[
        Path | None, typer.Option(help="Target whose verify step counts; the demo's by default.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each comparison.")] = 11,
) -> None:
    """Measure the ratios that the CPU kernels are held to: tree, draw, attention, convolution."""
    from dflash_sglang.bench.kernel_goals import print_goals
    from dflash_sglang.demo.run import PAIR

    if not print_goals(target or PAIR / "target", rounds):
        _fail("A kernel misses what is promised of it (see the table).")


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


@app.command(context_settings=_PASS_THROUGH, add_help_option=False)
def vocabulary(context: typer.Context) -> None:
    """List the tokens that drafts are made of: the frequent ones of captured text."""
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
