"""``dflash2 serve``: SGLang's own server, with the flags that dflash2 needs filled in."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from typing import Any

from dflash_sglang.host.bootstrap import CPU_ENGINE_VARIABLE

_ALGORITHM = "--speculative-algorithm"


def complete_arguments(arguments: list[str]) -> list[str]:
    """Add ``--speculative-algorithm dflash2`` where it is missing.

    Raises:
        ValueError: another algorithm was asked for.
    """
    given = _value_of(_ALGORITHM, arguments)
    if given is None:
        return [*arguments, _ALGORITHM, "dflash2"]
    if given.lower() != "dflash2":
        raise ValueError(
            f"dflash2 serve starts dflash2: expected no {_ALGORITHM}, or dflash2, got {given!r}; "
            "other algorithms start with python -m sglang.launch_server."
        )
    return arguments


def launch(arguments: list[str]) -> None:
    """Replace this process by SGLang's server; does not return."""
    if _value_of("--device", arguments) == "cpu":
        os.environ.setdefault(CPU_ENGINE_VARIABLE, "1")
    command = [sys.executable, "-m", "sglang.launch_server", *arguments]
    os.execv(sys.executable, command)


def describe(arguments: list[str]) -> str:
    """The resolved options, without a device, a target or a server.

    Raises:
        ValueError: the options cannot be honoured.
    """
    from dflash_sglang.algorithm import options_from

    parsed = _parse(arguments)
    options = options_from(parsed, parsed.speculative_num_draft_tokens)
    return (
        f"device {parsed.device or 'as SGLang finds it'}, listening on "
        f"{parsed.host}:{parsed.port}, tensor parallel {parsed.tp_size}\ndflash2: "
        f"{options.describe()}"
    )


def _parse(arguments: list[str]) -> Any:
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import ServerArgs

    logging.getLogger("sglang").setLevel(logging.ERROR)
    load_plugins()
    parser = argparse.ArgumentParser(prog="dflash2 serve")
    ServerArgs.add_cli_args(parser)
    return ServerArgs.from_cli_args(parser.parse_args(arguments))


def _value_of(flag: str, arguments: list[str]) -> str | None:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(flag, dest="value")
    return parser.parse_known_args(arguments)[0].value
