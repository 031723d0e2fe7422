"""``dflash2 doctor``: what is installed, whether it fits, and what a server would use."""

from __future__ import annotations

from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table

from dflash_sglang import __version__
from dflash_sglang.engine import compat
from dflash_sglang.host.bootstrap import CPU_ENGINE_VARIABLE, cuda_driver_present


class Finding(NamedTuple):
    """One line of the diagnosis."""

    subject: str
    found: str
    good: bool


def diagnose() -> list[Finding]:
    """Every check, in the order in which a server would meet them."""
    return [_versions(), _names(), _device(), _kernels()]


def print_diagnosis() -> bool:
    """Print the findings; True if a dflash2 server would start."""
    findings = diagnose()
    table = Table("", "", "", show_header=False, title="dflash2 doctor")
    for finding in findings:
        mark = "[green]ok[/]" if finding.good else "[red]no[/]"
        table.add_row(mark, finding.subject, finding.found)
    Console().print(table)
    return all(finding.good for finding in findings)


def _versions() -> Finding:
    found = (
        f"dflash-sglang {__version__}, SGLang {compat.sglang_version()}, torch {torch.__version__}"
    )
    tested = compat.sglang_version() == compat.TESTED_VERSION
    note = "" if tested else f" (tested with SGLang {compat.TESTED_VERSION})"
    return Finding("versions", found + note, good=True)


def _names() -> Finding:
    mismatches = compat.find_mismatches()
    if mismatches:
        return Finding("SGLang's names", compat.describe_mismatches(mismatches), good=False)
    return Finding("SGLang's names", f"all {len(compat.RELIANCES)} as expected", good=True)


def _device() -> Finding:
    if torch.cuda.is_available():
        return Finding("device", f"cuda: {torch.cuda.get_device_name()}", good=True)
    if torch.xpu.is_available():
        return Finding("device", f"xpu: {torch.xpu.get_device_name()}", good=True)
    hint = f"cpu, {torch.get_num_threads()} threads; serve with --device cpu"
    if cuda_driver_present():
        hint += f" and {CPU_ENGINE_VARIABLE}=1 (a CUDA driver is present)"
    return Finding("device", hint, good=True)


def _kernels() -> Finding:
    from dflash_sglang.kernels import library
    from dflash_sglang.kernels.build import KernelBuildError

    try:
        return Finding("CPU kernels", library.load(), good=True)
    except KernelBuildError as error:
        return Finding("CPU kernels", str(error), good=False)
