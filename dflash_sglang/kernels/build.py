"""Compiles ``csrc/cpu`` with the machine's own C++ compiler at first use.

The library lands in a private cache directory under a name made of everything that decides its
content (sources, compiler, flags, PyTorch), so a change of any of them builds anew and concurrent
processes find the same file. ``DFLASH2_KERNELS=reference`` asks for the PyTorch references instead,
``DFLASH2_CACHE_DIR`` moves the cache, ``CXX`` names the compiler, ``DFLASH2_CXX_FLAGS`` adds flags
(a sanitizer's, say).
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from filelock import FileLock

logger = logging.getLogger(__name__)

MODE_VARIABLE = "DFLASH2_KERNELS"
CACHE_VARIABLE = "DFLASH2_CACHE_DIR"
FLAGS_VARIABLE = "DFLASH2_CXX_FLAGS"
_MODES = ("compiled", "reference")

_COMMON_FLAGS = (
    "-std=gnu++20",
    "-O3",
    "-fPIC",
    "-fopenmp",
    "-ffp-contract=fast",  # one rounding per multiply-add, everywhere alike
    "-fno-math-errno",
    "-fvisibility=hidden",
    "-Wno-psabi",
)


class KernelError(RuntimeError):
    """A backend cannot be used: its kernels do not compile, or its runtime refuses something."""


class KernelBuildError(KernelError):
    """The compiler is missing or refused the sources; names the command and the log."""


def kernel_mode() -> str:
    """``"compiled"`` or ``"reference"``, from ``DFLASH2_KERNELS``.

    Raises:
        ValueError: the variable holds anything else.
    """
    mode = os.environ.get(MODE_VARIABLE, "compiled")
    if mode not in _MODES:
        raise ValueError(f"{MODE_VARIABLE} must be one of {', '.join(_MODES)}, got {mode!r}.")
    return mode


def source_directory() -> Path:
    """Where ``csrc`` lies: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    for candidate in (package / "_csrc", package.parent / "csrc"):
        if (candidate / "cpu").is_dir():
            return candidate
    raise KernelBuildError(f"No kernel sources: neither {package}/_csrc nor a csrc beside it.")


def target_flags(cpu_flags: set[str] | None = None) -> tuple[str, ...]:
    """Instruction-set flags for this machine: AVX-512 (and its products of bfloat16),
    AVX2 with FMA, or the plain target.

    Args:
        cpu_flags: feature names as in ``/proc/cpuinfo``; read from there by default.
    """
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return ()
    flags = _cpu_flags() if cpu_flags is None else cpu_flags
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags:
        pairs = ("-mavx512bf16",) if "avx512_bf16" in flags else ()
        return ("-march=x86-64-v4", *pairs)
    if {"avx2", "fma", "f16c", "bmi2"} <= flags:
        return ("-march=x86-64-v3",)
    return ()


def build_library() -> Path:
    """Path of the compiled library, built first if the cache does not hold it.

    Raises:
        KernelBuildError: no compiler, or it failed.
    """
    csrc = source_directory()
    compiler = find_compiler()
    flags = (*_COMMON_FLAGS, *target_flags(), *os.environ.get(FLAGS_VARIABLE, "").split())
    sources = [path for part in ("core", "cpu") for path in (csrc / part).glob("*.[ch]*")]
    key = content_key((compiler, *flags, torch.__version__), csrc, sources)
    directory = cache_directory()
    library = directory / f"dflash2_cpu-{key}.so"
    if library.exists():
        return library
    with FileLock(directory / f"{key}.lock"):
        if not library.exists():
            _compile(csrc, compiler, flags, library)
    return library


def _compile(csrc: Path, compiler: str, flags: tuple[str, ...], library: Path) -> None:
    logger.info("Compiling the CPU kernels once into %s", library)
    include = Path(torch.__file__).parent / "include"
    libraries = Path(torch.__file__).parent / "lib"
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        sources = sorted((csrc / "cpu").glob("*.cpp"))
        objects = [Path(scratch) / f"{source.stem}.o" for source in sources]
        commands = [
            [compiler, *flags, f"-I{include}", "-c", str(source), "-o", str(output)]
            for source, output in zip(sources, objects, strict=True)
        ]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for _ in pool.map(run_compiler, commands):
                pass
        linked = Path(scratch) / library.name
        link = [compiler, *flags, "-shared", *map(str, objects), "-o", str(linked)]
        run_compiler([*link, f"-L{libraries}", "-ltorch_cpu", "-lc10"])
        os.replace(linked, library)


def run_compiler(command: list[str]) -> None:
    """Run a compiler.

    Raises:
        KernelBuildError: it failed; names the command and shows its log.
    """
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        raise KernelBuildError(
            f"Compiling the kernels failed (set {MODE_VARIABLE}=reference to go on without "
            f"them).\nCommand: {' '.join(command)}\nLog:\n{result.stderr}"
        )


def find_compiler() -> str:
    """The C++ compiler: ``CXX`` or g++."""
    name = os.environ.get("CXX", "g++")
    path = shutil.which(name)
    if path is None:
        raise KernelBuildError(
            f"The CPU kernels need a C++20 compiler, and {name!r} was not found; install g++, set "
            f"CXX, or set {MODE_VARIABLE}=reference to use the slower PyTorch references."
        )
    return path


def _cpu_flags() -> set[str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return set()
    return next(
        (set(line.partition(":")[2].split()) for line in text.splitlines() if "flags" in line),
        set(),
    )


def content_key(command: tuple[str, ...], csrc: Path, sources: list[Path]) -> str:
    """A name for what a command makes of these sources: both, and the compiler's version."""
    version = subprocess.run([command[0], "--version"], capture_output=True, text=True).stdout
    digest = hashlib.sha256()
    for part in (version, *command[1:]):
        digest.update(part.encode() + b"\0")
    for source in sorted(sources):
        digest.update(str(source.relative_to(csrc)).encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:20]


def cache_directory() -> Path:
    """The private folder of compiled kernels, made if there is none."""
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "dflash2"
    directory = Path(os.environ.get(CACHE_VARIABLE, default))
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    # A library is executed on loading: nobody else may be able to put one there.
    status = directory.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise KernelBuildError(
            f"The kernel cache {directory} must belong to this user and be writable by no other; "
            f"set {CACHE_VARIABLE} to a private directory."
        )
    return directory
