"""Lets every SGLang process start on a machine without an accelerator.

Two obstacles stand before any plugin is loaded, in the server and in each process it spawns:

* SGLang takes its CPU branches only if ``SGLANG_USE_CPU_ENGINE=1`` is in the environment when its
  modules are imported. A user who says ``--device cpu`` has said enough, so the variable is set
  for them, and the spawned processes inherit it.
* The ``sgl_kernel`` package that SGLang depends on is a CUDA build: its loader raises without
  ``libcuda.so.1``. Its Python layer is fine, so a loader that fails is answered with the CPU
  operators of :mod:`dflash_sglang.host.operators`.

A third thing has to be said before OpenMP is loaded: how long an idle thread spins before it
sleeps. By default that is milliseconds, on the cores that the HTTP server, the detokenizer and the
client need; with two cores a decode step then waits for whole time slices. Asleep at once it has to
be woken for every matrix product, which costs a fifth of a verify step. So it spins for some
hundred microseconds: longer than the Python code between two products, shorter than a time slice.

``dflash_sglang_cpu.pth`` calls :func:`install` at interpreter start in processes that carry one of
the two signs. This module imports nothing beyond the standard library: with neither sign, or in a
process that never imports ``sgl_kernel``, nothing else happens.
"""

from __future__ import annotations

import ctypes
import importlib.abc
import importlib.machinery
import itertools
import os
import sys
from collections.abc import MutableMapping, Sequence
from types import ModuleType
from typing import Any

CPU_ENGINE_VARIABLE = "SGLANG_USE_CPU_ENGINE"
_WAIT_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
_SPINS = "20000"
_LOADER_MODULE = "sgl_kernel.load_utils"
_LAUNCHERS = ("sglang", "dflash2")


def install(
    argv: Sequence[str] | None = None, environ: MutableMapping[str, str] | None = None
) -> bool:
    """Prepare this process for SGLang's CPU engine if it asks for it.

    Args:
        argv: The whole command line, interpreter included; ``sys.orig_argv`` by default.
        environ: Environment to read and to set ``SGLANG_USE_CPU_ENGINE`` in; ``os.environ`` by
            default.

    Returns:
        True if the process will run the CPU engine (the import hook is then in place).
    """
    argv = sys.orig_argv if argv is None else argv
    environ = os.environ if environ is None else environ
    if asks_for_cpu_device(argv) and not cuda_driver_present():
        environ.setdefault(CPU_ENGINE_VARIABLE, "1")
    if environ.get(CPU_ENGINE_VARIABLE) != "1":
        return False
    if not any(variable in environ for variable in _WAIT_VARIABLES):
        environ["GOMP_SPINCOUNT"] = _SPINS
    _hook_kernel_loader()
    return True


def asks_for_cpu_device(argv: Sequence[str]) -> bool:
    """Whether a command line launches SGLang (or ``dflash2``) with ``--device cpu``."""
    launches = any(
        os.path.basename(word) in _LAUNCHERS or word.startswith("sglang.") for word in argv[1:4]
    )
    says_cpu = "--device=cpu" in argv or ("--device", "cpu") in itertools.pairwise(argv)
    return launches and says_cpu


def cuda_driver_present() -> bool:
    """Whether the CUDA driver library can be loaded (a GPU machine stays as it is)."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def _hook_kernel_loader() -> None:
    if _LOADER_MODULE in sys.modules:
        _answer_missing_library(sys.modules[_LOADER_MODULE])
    elif not any(isinstance(finder, _KernelLoaderFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _KernelLoaderFinder())


class _KernelLoaderFinder(importlib.abc.MetaPathFinder):
    """Lets ``sgl_kernel.load_utils`` be imported as it is, then wraps its loading function."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname != _LOADER_MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is None or spec.loader is None:
            return None
        spec.loader = _PatchingLoader(spec.loader)
        return spec


class _PatchingLoader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _answer_missing_library(module)


def _answer_missing_library(load_utils: Any) -> None:
    """Wrap the native loader: what it cannot load, our operators stand in for."""
    load_native = load_utils._load_architecture_specific_ops
    preload_cuda = load_utils._preload_cuda_library

    def load_or_define():
        from dflash_sglang.host import operators

        try:
            library = load_native()
        except ImportError:
            library = None
        operators.define_missing()
        return library

    def preload_if_present() -> None:
        if cuda_driver_present():
            preload_cuda()

    load_utils._load_architecture_specific_ops = load_or_define
    load_utils._preload_cuda_library = preload_if_present
