"""Operators of namespace ``dflash2``: schemas, and an implementation compiled or in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import NamedTuple

import torch

from dflash_sglang.kernels import build

NAMESPACE = "dflash2"
_OPERATOR_MODULES = ("attention", "linear", "rows", "tree", "walk")

_library = torch.library.Library(NAMESPACE, "FRAGMENT")


class Operator(NamedTuple):
    """One operator. The reference is its specification and its implementation without kernels."""

    schema: str
    reference: Callable
    fake: Callable

    @property
    def name(self) -> str:
        return self.schema.partition("(")[0]


_operators: list[Operator] = []


def define(operator: Operator) -> None:
    """Declare an operator. Its reference serves wherever :func:`load` brings nothing better."""
    _library.define(operator.schema)
    _library.impl(operator.name, operator.reference, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{operator.name}", operator.fake)
    _operators.append(operator)


@cache
def load() -> str:
    """Give every operator its compiled CPU implementation, unless the references are asked for.

    Returns:
        ``"compiled"`` or ``"reference"``: which one serves (see ``DFLASH2_KERNELS``).

    Raises:
        KernelBuildError: the kernels could not be compiled.
        ValueError: ``DFLASH2_KERNELS`` is neither.
    """
    for module in _OPERATOR_MODULES:
        import_module(f"{__package__}.{module}")
    mode = build.kernel_mode()
    if mode == "compiled":
        torch.ops.load_library(str(build.build_library()))
    return mode
