"""Bandwidth and compute of some devices, as their makers publish them."""

from __future__ import annotations

from typing import NamedTuple

from dflash_sglang.bench.errors import BenchError
from dflash_sglang.bench.provenance import Provenance, Published


class Device(NamedTuple):
    """What bounds a decode step."""

    name: str
    bandwidth: float  # bytes/s of device memory
    compute: float  # FLOP/s, dense, 16-bit
    provenance: Provenance


def _published(name: str, terabytes: float, teraflops: float, source: str) -> Device:
    return Device(name, terabytes * 1e12, teraflops * 1e12, Published(source=source))


DEVICES: dict[str, Device] = {
    "arc-pro-b70": _published(
        "Intel Arc Pro B70", 0.608, 130, "DFlash & DFlash2: Block-Diffusion LLM-Speedup, section 2"
    ),
    "a100": _published("NVIDIA A100 80 GB SXM", 2.039, 312, "NVIDIA A100 data sheet"),
    "h100": _published("NVIDIA H100 SXM", 3.35, 989, "NVIDIA H100 data sheet"),
    "h200": _published("NVIDIA H200 SXM", 4.8, 989, "NVIDIA H200 data sheet"),
    "b200": _published("NVIDIA B200", 8.0, 2250, "NVIDIA HGX B200 data sheet, per GPU"),
    "b300": _published("NVIDIA B300", 8.0, 2250, "NVIDIA HGX B300 data sheet, per GPU"),
}


def choose_device(name: str, bandwidth: float | None, compute: float | None) -> Device:
    """A device by its short name, or with other figures.

    Args:
        bandwidth: GB/s, instead of the device's.
        compute: TFLOP/s, instead of the device's.

    Raises:
        BenchError: an unknown name, or a figure that is not above 0.
    """
    if name not in DEVICES:
        raise BenchError(f"unknown device {name!r}: expected one of {', '.join(DEVICES)}.")
    if any(value is not None and value <= 0 for value in (bandwidth, compute)):
        raise BenchError(f"--bandwidth and --compute must be above 0, got {bandwidth}, {compute}.")
    known = DEVICES[name]
    if bandwidth is None and compute is None:
        return known
    return Device(
        name="as given",
        bandwidth=known.bandwidth if bandwidth is None else bandwidth * 1e9,
        compute=known.compute if compute is None else compute * 1e12,
        provenance=Published(source="the command line"),
    )
