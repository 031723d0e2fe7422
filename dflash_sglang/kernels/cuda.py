"""The kernels on NVIDIA cards: compiled by nvcc for the card at hand, launched by the driver.

No PyTorch header is compiled, which takes seconds rather than minutes, and nothing but the driver
is loaded. Launches go to PyTorch's current stream, so CUDA graphs capture them.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import torch
from filelock import FileLock
from torch import Tensor

from dflash_sglang.kernels import build
from dflash_sglang.kernels.device import Argument

ARCHITECTURES = (80, 86, 89, 90, 100, 120)
_FLAGS = ("-std=c++17", "-O3", "--fmad=true", "-Werror", "all-warnings")


class CudaError(build.KernelError):
    """The driver is missing or refused a call; names it and the code."""


class CudaDevice:
    """Launches the kernels of one compiled module on PyTorch's current stream.

    Args:
        module: a cubin or fat binary that holds code for the current card.
    """

    sub_group = 32

    def __init__(self, module: Path) -> None:
        try:
            self._driver = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise CudaError(f"The CUDA kernels need NVIDIA's driver: {error}") from error
        torch.cuda.current_stream()  # makes PyTorch's context current
        self._module = ctypes.c_void_p()
        image = module.read_bytes()
        self._call("cuModuleLoadData", ctypes.byref(self._module), image)
        self._functions: dict[str, ctypes.c_void_p] = {}

    def launch(self, kernel: str, groups: int, group_size: int, *arguments: Argument) -> None:
        """Launch ``groups`` blocks of ``group_size`` threads; see :class:`device.Device`."""
        if groups == 0:
            return
        values = [_value(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        grid = (groups, 1, 1, group_size, 1, 1)
        self._call("cuLaunchKernel", self._function(kernel), *grid, 0, stream, pointers, None)

    def _function(self, kernel: str) -> ctypes.c_void_p:
        function = self._functions.get(kernel)
        if function is None:
            function = ctypes.c_void_p()
            self._call("cuModuleGetFunction", ctypes.byref(function), self._module, kernel.encode())
            self._functions[kernel] = function
        return function

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._driver, name)(*arguments)
        if code != 0:
            raise CudaError(f"{name} returned the error {code}")


@cache
def current_device() -> CudaDevice:
    """The kernels on this process's card, compiled first if the cache does not hold them.

    Raises:
        KernelBuildError: no nvcc, or it failed.
    """
    major, minor = torch.cuda.get_device_capability()
    return CudaDevice(build_module((10 * major + minor,)))


def build_module(architectures: tuple[int, ...]) -> Path:
    """Compile ``csrc/cuda`` into one fat binary for these architectures (sm numbers)."""
    csrc, nvcc = build.source_directory(), _nvcc()
    codes = [f"-gencode=arch=compute_{sm},code=sm_{sm}" for sm in architectures]
    flags = (*_FLAGS, *codes, f"-I{csrc / 'core'}")
    sources = [*(csrc / "core").glob("*.h"), *(csrc / "device").glob("*.h")]
    sources += [*(csrc / "cuda").glob("*.cu*")]
    key = build.content_key((nvcc, *flags), csrc, sources)
    directory = build.cache_directory()
    module = directory / f"dflash2_cuda-{key}.fatbin"
    with FileLock(directory / f"{key}.lock"):
        if not module.exists():
            scratch = module.with_suffix(f".{os.getpid()}")
            source = csrc / "cuda" / "kernels.cu"
            build.run_compiler([nvcc, *flags, "-fatbin", str(source), "-o", str(scratch)])
            os.replace(scratch, module)
    return module


def _nvcc() -> str:
    """The compiler of CUDA_HOME, of the PATH, or of the package ``nvidia-cuda-nvcc``."""
    root = os.environ.get("CUDA_HOME")
    path = shutil.which("nvcc", path=f"{root}/bin") if root else shutil.which("nvcc")
    path = path or _packaged_nvcc()
    if path is None:
        raise build.KernelBuildError(
            "The CUDA kernels need nvcc, which was not found; install the CUDA toolkit or the "
            "package nvidia-cuda-nvcc, put nvcc on the PATH or set CUDA_HOME, or set "
            f"{build.MODE_VARIABLE}=reference."
        )
    return path


def _packaged_nvcc() -> str | None:
    spec = importlib.util.find_spec("nvidia")
    folders = [] if spec is None else spec.submodule_search_locations or []
    found = [path for folder in folders for path in Path(folder).glob("*/bin/nvcc")]
    return str(found[0]) if found else None


def nvcc_version() -> str:
    """Last line of ``nvcc --version``."""
    result = subprocess.run([_nvcc(), "--version"], capture_output=True, text=True, check=True)
    return result.stdout.strip().splitlines()[-1]


def _value(argument: Argument) -> ctypes.c_uint64 | ctypes.c_int64:
    if argument is None:
        return ctypes.c_uint64(0)
    if isinstance(argument, Tensor):
        return ctypes.c_uint64(argument.data_ptr())
    return ctypes.c_int64(argument)
