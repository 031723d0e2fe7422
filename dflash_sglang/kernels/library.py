"""Operators of namespace ``dflash2``: schemas, and an implementation compiled or in PyTorch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from typing import NamedTuple

import torch

from dflash_sglang.kernels import build

logger = logging.getLogger(__name__)

NAMESPACE = "dflash2"
_OPERATOR_MODULES = (
    "attention",
    "candidates",
    "convolution",
    "draw",
    "expectation",
    "kv",
    "lattice",
    "linear",
    "rows",
    "top_columns",
    "tree",
    "walk",
)

_DEVICES = ("cuda", "xpu")

_library = torch.library.Library(NAMESPACE, "FRAGMENT")


class Operator(NamedTuple):
    """One operator. The reference is its specification and its implementation without kernels."""

    schema: str
    reference: Callable
    fake: Callable

    @property
    def name(self) -> str:
        return self.schema.partition("(")[0]


_operators: dict[str, Operator] = {}


def define(operator: Operator) -> None:
    """Declare an operator. Its reference serves wherever :func:`load` brings nothing better."""
    _library.define(operator.schema)
    _library.impl(operator.name, operator.reference, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{operator.name}", operator.fake)
    _operators[operator.name] = operator


def operator_names() -> list[str]:
    """Every operator, declared if it was not yet."""
    _declare()
    return sorted(_operators)


def operator(name: str) -> Callable:
    """What ``torch.ops`` runs under that name."""
    return getattr(torch.ops.dflash2, name)


def reference(name: str) -> Callable:
    """The PyTorch reference of an operator."""
    _declare()
    return _operators[name].reference


@cache
def load() -> str:
    """Give every operator its compiled CPU implementation, unless the references are asked for.

    Returns:
        ``"compiled"`` or ``"reference"``: which one serves (see ``DFLASH2_KERNELS``).

    Raises:
        KernelBuildError: the kernels could not be compiled.
        ValueError: ``DFLASH2_KERNELS`` is neither.
    """
    _declare()
    mode = build.kernel_mode()
    if mode == "compiled":
        torch.ops.load_library(str(build.build_library()))
    return mode


@cache
def serve(device: str) -> str:
    """What an engine calls once a process: the best that this machine has for its device.

    A backend that cannot be used leaves the references, and the log says which and why.

    Args:
        device: where the engine computes: ``"cpu"``, ``"cuda"``, ``"xpu"``.

    Returns:
        ``"compiled"`` or ``"reference"``, as :func:`load`.
    """
    try:
        mode = load() if device == "cpu" else load_device(device)
    except build.KernelError as error:
        logger.error("dflash2 computes with PyTorch's references on %s. %s", device, error)
        return "reference"
    logger.info("dflash2 kernels on %s: %s", device, mode)
    return mode


@cache
def load_device(kind: str) -> str:
    """Give the operators of a decode step their kernels on an accelerator, once a process.

    Args:
        kind: ``"cuda"`` or ``"xpu"``.

    Returns:
        ``"compiled"`` or ``"reference"``, as :func:`load`.

    Raises:
        KernelError: there are no kernels for this kind, they could not be compiled, or the device
            cannot be opened. The references go on serving.
    """
    _declare()
    mode = build.kernel_mode()
    if mode == "compiled":
        if kind not in _DEVICES:
            raise build.KernelError(f"Kernels exist for {', '.join(_DEVICES)}, not for {kind}.")
        opened = import_module(f"{__package__}.{kind}").current_device()
        for name, function in import_module(f"{__package__}.device").OPERATORS.items():
            _library.impl(name, _with_fallback(partial(function, opened), name), kind.upper())
    return mode


def _with_fallback(kernel: Callable, name: str) -> Callable:
    """The kernel, or the reference for calls that it does not support; said once."""
    from dflash_sglang.kernels.device import Unsupported

    told: set[str] = set()

    def run(*arguments: object) -> object:
        try:
            return kernel(*arguments)
        except Unsupported as limit:
            if str(limit) not in told:
                logger.warning("%s: %s; the PyTorch reference serves", name, limit)
                told.add(str(limit))
            return reference(name)(*arguments)

    return run


def _declare() -> None:
    for module in _OPERATOR_MODULES:
        import_module(f"{__package__}.{module}")
