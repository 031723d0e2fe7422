"""Server flags: ``--speculative-draft`` as SGLang's users write it, and ``--dflash2-config``."""

from __future__ import annotations

import argparse
import os
from typing import Any

from dflash_sglang.options import TUNING_VARIABLE, OptionsError, parse_tuning


def register() -> None:
    """Hook SGLang's argument parser; the flags take effect in whatever process parses them."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    server_args = "sglang.srt.server_args.ServerArgs"
    HookRegistry.register(f"{server_args}.add_cli_args", _add_flags, HookType.AFTER)
    HookRegistry.register(f"{server_args}.from_cli_args", _publish_tuning, HookType.BEFORE)


def _add_flags(_result: None, parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("dflash2")
    # Several of SGLang's flags begin with it, so without a flag of its own argparse calls the
    # short form ambiguous.
    group.add_argument(
        "--speculative-draft",
        dest="speculative_draft_model_path",
        # SUPPRESS: the long form's default must not be overwritten by the alias.
        default=argparse.SUPPRESS,
        help="The same as --speculative-draft-model-path.",
    )
    group.add_argument(
        "--dflash2-config",
        type=_checked_tuning,
        default=argparse.SUPPRESS,
        help=(
            "Options of dflash2 that have no flag of their own, as a JSON object or the path of a "
            "file with one, for example '{\"entropy_weight\": 0.1}'."
        ),
    )


def _checked_tuning(text: str) -> str:
    try:
        parse_tuning(text)
    except OptionsError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _publish_tuning(*args: Any, **kwargs: Any) -> None:
    # ServerArgs has a closed set of fields, and its workers are spawned processes: the environment
    # is what they inherit.
    for value in (*args, *kwargs.values()):
        if isinstance(value, argparse.Namespace) and hasattr(value, "dflash2_config"):
            os.environ[TUNING_VARIABLE] = value.dflash2_config
