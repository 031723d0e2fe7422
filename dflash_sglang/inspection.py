"""``dflash2 inspect``: a drafter's checkpoint at a glance."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from dflash_sglang.drafter.inspect import Inspection, inspect_checkpoint

_MB = 1e6


def print_inspection(checkpoint: Path, target: Path | None, *, as_json: bool) -> bool:
    """Print what a drafter is; True unless it does not fit the target.

    Raises:
        ConfigError, CheckpointError, VocabularyError: the drafter itself is broken.
        InspectionError: the target cannot be read.
    """
    inspection = inspect_checkpoint(checkpoint, target)
    if as_json:
        print(json.dumps(dataclasses.asdict(inspection), indent=2))
    else:
        console = Console()
        console.print(_facts(inspection))
        console.print(_parts(inspection))
        for mismatch in inspection.mismatches:
            console.print(f"[red]does not fit:[/] {mismatch}")
        if target is not None and not inspection.mismatches:
            console.print(f"[green]fits[/] {target}")
    return not inspection.mismatches


def _facts(inspection: Inspection) -> Table:
    conv, selector = inspection.conv, inspection.selector
    table = Table("", "", show_header=False, title=inspection.path)
    table.add_row("architecture", inspection.architecture)
    table.add_row("block size", f"{inspection.block_size}, anchor included")
    table.add_row("label shift", "yes" if inspection.shift_label else "no")
    of = f" of {inspection.num_target_layers}" if inspection.num_target_layers else ""
    table.add_row("taps", f"layers {', '.join(map(str, inspection.target_layer_ids))}{of}")
    table.add_row("attention", "; ".join(inspection.attention))
    table.add_row(
        "convolution",
        "none"
        if conv is None
        else f"{conv.kind}, width {conv.kernel_size}, groups of {conv.group_size}",
    )
    table.add_row(
        "selector",
        "none" if selector is None else f"rank {selector.rank}, top {selector.top_k}",
    )
    mask = f" ({inspection.mask_token})" if inspection.mask_token else ""
    table.add_row("mask token", f"{inspection.mask_token_id}{mask}")
    listed = inspection.draft_vocabulary
    table.add_row("drafts are made of", f"{listed:,} tokens" if listed else "all tokens")
    table.add_row("context KV", f"{inspection.context_bytes_per_token:,} bytes a token")
    return table


def _parts(inspection: Inspection) -> Table:
    dtype = inspection.serving_dtype
    table = Table("part", "parameters", f"MB in {dtype}", "how it comes about")
    for part in inspection.parts:
        table.add_row(part.name, f"{part.parameters:,}", f"{part.bytes / _MB:.1f}", part.shape)
    table.add_section()
    table.add_row("all", f"{inspection.parameters:,}", f"{inspection.bytes / _MB:.1f}", "")
    table.add_row(
        "shared with the target", "", f"{inspection.shared_bytes / _MB:.1f}", "embedding and head"
    )
    return table
