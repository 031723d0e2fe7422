"""What every mode is asked: workloads at temperatures under loads."""

from __future__ import annotations

from collections.abc import Iterable

from dflash_sglang.bench.errors import BenchError
from dflash_sglang.bench.records import Case, Load


def all_cases(workloads: Iterable[str], temperatures: list[float], loads: list[Load]) -> list[Case]:
    """Every workload at every temperature under every load."""
    return [
        Case(workload=workload, temperature=temperature, load=load)
        for workload in workloads
        for temperature in temperatures
        for load in loads
    ]


def parse_loads(concurrency: str, rate: str) -> list[Load]:
    """Closed loops and arrival rates, each several with commas.

    Raises:
        BenchError: no load, or one that cannot be.
    """
    users = parse_numbers(concurrency, "--concurrency")
    if any(number < 1 or number != int(number) for number in users):
        raise BenchError(f"--concurrency expects whole numbers from 1, got {concurrency!r}.")
    rates = parse_numbers(rate, "--rate")
    if any(number <= 0 for number in rates):
        raise BenchError(f"--rate expects numbers above 0, got {rate!r}.")
    loads = [Load(concurrency=int(number)) for number in users]
    loads += [Load(rate=number) for number in rates]
    if not loads:
        raise BenchError("nothing to measure: give --concurrency or --rate.")
    return loads


def parse_numbers(text: str, flag: str) -> list[float]:
    """Numbers separated by commas.

    Raises:
        BenchError: something else, or a negative number; the sentence names the flag.
    """
    try:
        numbers = [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise BenchError(f"{flag} expects numbers separated by commas, got {text!r}.") from None
    if any(number < 0 for number in numbers):
        raise BenchError(f"{flag} expects no negative number, got {text!r}.")
    return numbers
