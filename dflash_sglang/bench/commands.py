"""``dflash2 bench`` and ``dflash2 roofline``: options in, reports out."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

if TYPE_CHECKING:
    from dflash_sglang.bench.modes import Mode, Pair
    from dflash_sglang.bench.presets import Preset
    from dflash_sglang.bench.records import Case, Load

T = TypeVar("T")

app = typer.Typer(invoke_without_command=True)

_AS_SERVED = "as served"  # the target of servers that were given by URL


_SERVERS = "What is compared"
_REQUESTS = "What is asked"
_MEASURING = "How it is measured"


@app.callback()
def bench(
    context: typer.Context,
    mix: Annotated[
        bool,
        typer.Option(
            "--mix",
            help="Other defaults: adaptive, plain and fixed widths over code, JSON, chat and "
            "prose, greedy and sampled, 1 to 16 users, short and long contexts.",
            rich_help_panel=_SERVERS,
        ),
    ] = False,
    target: Annotated[
        str | None, typer.Option(help="The target's checkpoint.", rich_help_panel=_SERVERS)
    ] = None,
    drafter: Annotated[
        str | None, typer.Option(help="Its DFlash or DFlash 2 drafter.", rich_help_panel=_SERVERS)
    ] = None,
    eagle3_drafter: Annotated[
        str | None, typer.Option(help="Its drafter for eagle3.", rich_help_panel=_SERVERS)
    ] = None,
    modes: Annotated[
        str | None,
        typer.Option(
            help="Of plain, native, chain, chain<N>, tree, tree<N>, adaptive, ngram, eagle3, with "
            "commas. Without it those of --url, or plain,native,chain,tree; with --mix "
            "plain,tree4,tree8,tree16,adaptive.",
            rich_help_panel=_SERVERS,
        ),
    ] = None,
    url: Annotated[
        list[str] | None,
        typer.Option(
            help="MODE=URL of a server that runs already; repeatable.", rich_help_panel=_SERVERS
        ),
    ] = None,
    server_args: Annotated[
        str,
        typer.Option(
            help="Further flags of SGLang for every server that is started, in quotes.",
            rich_help_panel=_SERVERS,
        ),
    ] = "",
    mode_args: Annotated[
        list[str] | None,
        typer.Option(
            help="MODE=FLAGS for the server of one mode; repeatable.", rich_help_panel=_SERVERS
        ),
    ] = None,
    startup_timeout: Annotated[
        float, typer.Option(help="Seconds a server may take to start.", rich_help_panel=_SERVERS)
    ] = 900.0,
    workload: Annotated[
        list[str] | None,
        typer.Option(
            help="builtin or builtin:CATEGORY, behind a text of their own (+WORDS) or the same "
            "(@WORDS), as in builtin:code@800; a benchmark such as gsm8k, NAME=FILE or a .jsonl; "
            "repeatable. Without it: builtin.",
            rich_help_panel=_REQUESTS,
        ),
    ] = None,
    context_words: Annotated[
        int,
        typer.Option(
            min=1,
            help="Text before the long prompts of --mix; 850 words are some 1,500 tokens of the "
            "demo pair, and fewer of a larger vocabulary.",
            rich_help_panel=_REQUESTS,
        ),
    ] = 850,
    prompts: Annotated[
        int,
        typer.Option(min=1, help="Prompts of a workload in a round.", rich_help_panel=_REQUESTS),
    ] = 16,
    prompts_per_user: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Fewer of them at fewer users, other ones each round. Without it all; with "
            "--mix 1.",
            rich_help_panel=_REQUESTS,
        ),
    ] = None,
    least_prompts: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="With --prompts-per-user, never fewer than these: one answer is soon over. "
            "Without it 1; with --mix 4.",
            rich_help_panel=_REQUESTS,
        ),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Greatest length of an answer. Without it 64; with --mix 48.",
            rich_help_panel=_REQUESTS,
        ),
    ] = None,
    ignore_eos: Annotated[
        bool,
        typer.Option(
            "--ignore-eos",
            help="Let every answer have its greatest length; --mix does.",
            rich_help_panel=_REQUESTS,
        ),
    ] = False,
    temperature: Annotated[
        str | None,
        typer.Option(
            help="0 is greedy; several with commas. Without it 0,1; with --mix prose at 1 only.",
            rich_help_panel=_REQUESTS,
        ),
    ] = None,
    concurrency: Annotated[
        str | None,
        typer.Option(
            help="Users at once; several with commas. Without it 1,4,8; with --mix 1,4,8,16.",
            rich_help_panel=_REQUESTS,
        ),
    ] = None,
    rate: Annotated[
        str,
        typer.Option(
            help="Poisson arrivals, requests a second; several with commas.",
            rich_help_panel=_REQUESTS,
        ),
    ] = "",
    keep_cache: Annotated[
        bool | None,
        typer.Option(
            "--keep-cache/--empty-cache",
            help="Whether prompts of earlier rounds may be found in the prefix cache. Without it "
            "it is emptied before each round; with --mix kept.",
            rich_help_panel=_REQUESTS,
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Repetitions; intervals need two, those of --mix six. Without it 4; with --mix 6.",
            rich_help_panel=_MEASURING,
        ),
    ] = None,
    starts: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Starts of the servers, over which the rounds are spread: two that are started "
            "alike differ by some per cent. Without it 1; with --mix as many as rounds, or 1 "
            "beside --url.",
            rich_help_panel=_MEASURING,
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Of arrivals and sampling.", rich_help_panel=_MEASURING)
    ] = 0,
    out: Annotated[
        Path, typer.Option(help="Folder for the report.", rich_help_panel=_MEASURING)
    ] = Path("bench-report"),
) -> None:
    """Measure speculation against plain decoding: modes in turn, then a report.

    Without --target the demo pair is measured, on a CPU, in some ten minutes.
    Servers are started and stopped here, or given with --url. A mode that
    cannot run on this device is left out by name, with the server's reason.
    Compared are the same prompts, round after round; the report (HTML,
    Markdown, pictures, JSON) has an interval with every figure.

    plain: the target alone. native: SGLang's DFLASH. chain, tree: dflash2;
    tree8 verifies 8 nodes a step, chain4 4. adaptive: dflash2 that chooses its
    nodes step by step. ngram: SGLang's prompt lookup. eagle3: SGLang's EAGLE-3.

    Example: dflash2 bench

    Example: dflash2 bench --mix

    Example: dflash2 bench --modes plain,tree4,tree8,adaptive --concurrency 8

    Example: dflash2 bench --target T --drafter D --server-args "--tp 2"

    Example: dflash2 bench --url plain=http://A:30000 --url tree=http://B:30000
    """
    if context.invoked_subcommand is not None:
        return
    from rich.console import Console

    from dflash_sglang.bench import machine, presets, report, session, terminal, workloads
    from dflash_sglang.bench.cases import parse_loads
    from dflash_sglang.bench.modes import Pair, check_exists, parse_assignment

    preset = presets.mix(context_words) if mix else presets.STANDARD
    urls = dict(parse_assignment(text, "--url") for text in url or [])
    chosen = _modes(modes, list(urls), preset.modes)
    for flag, name in (
        ("--target", target),
        ("--drafter", drafter),
        ("--eagle3-drafter", eagle3_drafter),
    ):
        check_exists(flag, name)
    pair = Pair(target or _AS_SERVED, drafter, eagle3_drafter)
    arguments = shlex.split(server_args)
    if target is None and set(chosen) - set(urls):
        pair, arguments = _demo_pair(), [*_demo_arguments(preset.kv_tokens), *arguments]
    asked = workloads.load_workloads(workload or preset.workloads, prompts)
    loads = parse_loads(_given(concurrency, preset.concurrency), rate)
    repetitions = _given(rounds, preset.rounds)
    plan = session.Plan(
        pair=pair,
        modes=chosen,
        urls=urls,
        server_arguments=arguments,
        mode_arguments={
            mode: shlex.split(flags)
            for mode, flags in (parse_assignment(text, "--mode-args") for text in mode_args or [])
        },
        startup_timeout=startup_timeout,
        prompts=asked,
        cases=_cases(list(asked), temperature, loads, preset),
        rounds=repetitions,
        max_tokens=_given(max_tokens, preset.max_tokens),
        ignore_eos=ignore_eos or preset.ignore_eos,
        seed=seed,
        prompts_per_user=_given(prompts_per_user, preset.prompts_per_user),
        least_prompts=preset.least_prompts_of(least_prompts, prompts_per_user, prompts),
        keeps_cache=_given(keep_cache, preset.keep_cache),
        starts=preset.starts_of(starts, repetitions, list(urls)),
    )
    report.make_folder(out)  # before the minutes of measuring, not behind them
    console = Console()
    broken = None
    try:
        run = session.execute(plan, machine.command_line(), console)
    except session.BrokenRun as error:
        run, broken = error.run, error
    files = report.write_report(run, out)
    for part in terminal.summary(run):
        console.print(part)
    console.print(
        f"Wrote {len(files)} files to {out}. Open {out / 'report.html'}; a later run is compared "
        f"with `dflash2 bench compare {out / 'run.json'} OTHER/run.json`.",
        soft_wrap=True,
    )
    if broken is not None:
        raise broken


@app.command()
def compare(
    before: Annotated[Path, typer.Argument(help="run.json of one run.")],
    after: Annotated[Path, typer.Argument(help="run.json of another.")],
) -> None:
    """Say what changed from one run to another, and whether beyond noise.

    Example: dflash2 bench compare monday/run.json tuesday/run.json
    """
    from rich.console import Console
    from rich.table import Table

    from dflash_sglang.bench.compare import conditions, differences
    from dflash_sglang.bench.records import read_run

    old, new = read_run(before), read_run(after)
    table = Table("mode", "case", "metric", "change", "95 % interval", "verdict")
    for found in differences(old, new):
        case = found.case
        interval = found.change.interval
        table.add_row(
            found.mode,
            f"{case.workload}, T={case.temperature:g}, {case.load}",
            found.metric.name,
            f"{100 * (found.change.ratio - 1):+.1f} %",
            "one round"
            if interval is None
            else " to ".join(f"{100 * (x - 1):+.1f}" for x in interval),
            found.verdict,
        )
    console = Console()
    for line in conditions(old, new) or ["Same machine, versions and setup."]:
        console.print(line)
    console.print(table)
    console.print("Each row is judged by itself: of twenty without a change, one looks like one.")


@app.command("report")
def report_again(
    run: Annotated[Path, typer.Argument(help="run.json of a run.")],
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("bench-report"),
) -> None:
    """Draw the report of a run again.

    Example: dflash2 bench report bench-report/run.json --out again
    """
    from dflash_sglang.bench.records import read_run
    from dflash_sglang.bench.report import write_report

    for file in write_report(read_run(run), out):
        typer.echo(file)


def _given(option: T | None, default: T) -> T:
    return default if option is None else option


def _cases(
    workloads: list[str], temperature: str | None, loads: list[Load], preset: Preset
) -> list[Case]:
    """What was asked for; a preset's own temperatures where none were given."""
    from dflash_sglang.bench.cases import all_cases, parse_numbers

    temperatures = parse_numbers(_given(temperature, preset.temperature), "--temperature")
    cases = all_cases(workloads, temperatures, loads)
    return cases if temperature is not None else [case for case in cases if preset.asks(case)]


def _modes(asked: str | None, running: list[Mode], default: str) -> list[Mode]:
    """The modes that run already and those that were asked for."""
    from dflash_sglang.bench.modes import parse_modes

    if asked is None and running:
        return running
    wanted = {*running, *parse_modes(asked or default)}
    return sorted(wanted, key=lambda mode: mode.rank)


def _demo_pair() -> Pair:
    from dflash_sglang.bench.modes import Pair
    from dflash_sglang.demo.run import PAIR

    return Pair(str(PAIR / "target"), str(PAIR / "drafter"))


def _demo_arguments(kv_tokens: int) -> list[str]:
    from dflash_sglang.bench.server import cpu_arguments

    return ["--dtype", "float32", *cpu_arguments(kv_tokens)]
