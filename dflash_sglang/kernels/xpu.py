"""The kernels on Intel cards: compiled by the SYCL runtime itself, without the oneAPI toolkit.

The runtime (package ``intel-sycl-rt``, which PyTorch's XPU build depends on) brings the headers and
a compiler that works in memory. ``csrc/xpu/runner.cpp``, built once with the machine's own C++
compiler, hands the sources to it and launches the kernels, on PyTorch's current queue or, for
tests, on the OpenCL CPU device of ``intel-opencl-rt``.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from filelock import FileLock
from torch import Tensor

from dflash_sglang.kernels import build
from dflash_sglang.kernels.device import Argument

ROOT_VARIABLE = "DFLASH2_SYCL_ROOT"
_SOURCE = '#include "prelude.hpp"\n#include "entry_points.h"\n'
_RUNNER_FLAGS = (
    "-std=c++20",
    "-O1",
    "-fPIC",
    "-shared",
    "-DSYCL_DISABLE_FSYCL_SYCLHPP_WARNING",
)


class _Address(int):
    """A number that is the address of an argument."""


class SyclError(build.KernelError):
    """The SYCL runtime refused something; carries its message."""


class SyclDevice:
    """Kernels on the queue that PyTorch's current stream is.

    Args:
        current_queue: tells the address of the ``sycl::queue`` to launch on; asked at every launch.
            None launches on a queue of the first CPU device.
        sub_group: 16 or 32 threads.
    """

    def __init__(self, current_queue: Callable[[], int] | None, sub_group: int = 32) -> None:
        self.sub_group = sub_group
        self._current_queue: Callable[[], int | None] = current_queue or (lambda: None)
        self._runner = _load_runner(str(sycl_root()))
        self._program = ctypes.c_void_p(self._runner.dflash2_open(self._current_queue()))
        if not self._program:
            raise SyclError(self._message())
        self._compile()

    def launch(self, kernel: str, groups: int, group_size: int, *arguments: Argument) -> None:
        """Launch ``groups`` work-groups of ``group_size``; see :class:`device.Device`."""
        if groups == 0:
            return
        count = len(arguments)
        values = (ctypes.c_int64 * count)(*map(_value, arguments))
        pointers = bytes(_is_pointer(argument) for argument in arguments)
        self._check(
            self._runner.dflash2_launch(
                self._program,
                self._current_queue(),
                kernel.encode(),
                groups,
                group_size,
                values,
                pointers,
                count,
            )
        )

    def wait(self) -> None:
        """Until everything launched is done."""
        self._check(self._runner.dflash2_wait(self._program))

    def allocate(self, size: int) -> int:
        """Address of ``size`` bytes that host and device share."""
        address = self._runner.dflash2_allocate(self._program, max(size, 1))
        if not address:
            raise SyclError(f"the SYCL runtime has no {size} bytes: {self._message()}")
        return address

    def free(self, address: int) -> None:
        """Give shared memory back."""
        self._runner.dflash2_free(self._program, ctypes.c_void_p(address))

    def _compile(self) -> None:
        csrc = build.source_directory()
        headers = [*(csrc / "core").glob("*.h"), *(csrc / "device").glob("*.h")]
        headers.append(csrc / "xpu" / "prelude.hpp")
        headers = [path for path in headers if "immintrin" not in path.read_text()]
        names = (ctypes.c_char_p * len(headers))(*(path.name.encode() for path in headers))
        texts = (ctypes.c_char_p * len(headers))(*(path.read_bytes() for path in headers))
        option = f"-DDFLASH2_SUB_GROUP={self.sub_group}"
        self._check(
            self._runner.dflash2_build(
                self._program, _SOURCE.encode(), names, texts, len(headers), option.encode()
            )
        )

    def _check(self, failed: int) -> None:
        if failed:
            raise SyclError(self._message())

    def _message(self) -> str:
        return self._runner.dflash2_error().decode(errors="replace")


class StagedSyclDevice(SyclDevice):
    """A SYCL CPU device for tensors of PyTorch's CPU: arguments are copied there and back."""

    def __init__(self, sub_group: int = 32) -> None:
        os.environ.setdefault("OCL_ICD_FILENAMES", str(sycl_root() / "lib" / "libintelocl.so"))
        super().__init__(None, sub_group)

    def launch(self, kernel: str, groups: int, group_size: int, *arguments: Argument) -> None:
        staged: list[tuple[Tensor, int]] = []
        try:
            passed = [self._stage(argument, staged) for argument in arguments]
            super().launch(kernel, groups, group_size, *passed)
            self.wait()
            for tensor, address in staged:
                ctypes.memmove(tensor.untyped_storage().data_ptr(), address, _size(tensor))
        finally:
            for _, address in staged:
                self.free(address)

    def _stage(self, argument: Argument, staged: list[tuple[Tensor, int]]) -> Argument:
        """The address that stands for a tensor's first element."""
        if not isinstance(argument, Tensor):
            return argument
        storage = argument.untyped_storage().data_ptr()
        address = self.allocate(_size(argument))
        ctypes.memmove(address, storage, _size(argument))
        staged.append((argument, address))
        return _Address(address + argument.data_ptr() - storage)


@cache
def current_device() -> SyclDevice:
    """The kernels on PyTorch's XPU device."""
    return SyclDevice(lambda: torch.xpu.current_stream().sycl_queue)


def sycl_root() -> Path:
    """The folder whose ``include`` and ``lib`` hold the SYCL runtime.

    Raises:
        KernelBuildError: it is not installed.
    """
    candidates = [os.environ.get(ROOT_VARIABLE), sys.prefix, os.environ.get("CMPLR_ROOT")]
    for candidate in filter(None, candidates):
        if (Path(candidate) / "include" / "sycl" / "sycl.hpp").is_file():
            return Path(candidate)
    raise build.KernelBuildError(
        "The XPU kernels need the SYCL runtime; install intel-sycl-rt (PyTorch for XPU brings it) "
        f"or set {ROOT_VARIABLE} to the folder that holds its include and lib."
    )


@cache
def _load_runner(root: str) -> ctypes.CDLL:
    csrc, compiler = build.source_directory(), build.find_compiler()
    source = csrc / "xpu" / "runner.cpp"
    flags = (*_RUNNER_FLAGS, f"-isystem{root}/include")
    link = (f"-L{root}/lib", "-lsycl", f"-Wl,-rpath,{root}/lib")
    key = build.content_key((compiler, *flags, *link), csrc, [source])
    directory = build.cache_directory()
    library = directory / f"dflash2_sycl-{key}.so"
    with FileLock(directory / f"{key}.lock"):
        if not library.exists():
            scratch = library.with_suffix(f".{os.getpid()}")
            build.run_compiler([compiler, *flags, str(source), "-o", str(scratch), *link])
            os.replace(scratch, library)
    runner = ctypes.CDLL(str(library))
    for name in ("dflash2_open", "dflash2_allocate"):
        getattr(runner, name).restype = ctypes.c_void_p
    runner.dflash2_error.restype = ctypes.c_char_p
    runner.dflash2_allocate.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    runner.dflash2_open.argtypes = [ctypes.c_void_p]
    runner.dflash2_launch.argtypes = [
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_char_p,
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.POINTER(ctypes.c_int64),
        ctypes.c_char_p,
        ctypes.c_int,
    ]
    return runner


def _value(argument: Argument) -> int:
    if argument is None:
        return 0
    return argument.data_ptr() if isinstance(argument, Tensor) else argument


def _is_pointer(argument: Argument) -> bool:
    return argument is None or isinstance(argument, Tensor | _Address)


def _size(tensor: Tensor) -> int:
    return tensor.untyped_storage().nbytes()
