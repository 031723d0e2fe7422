"""The CPU bootstrap acts on the processes that ask for it and on no other."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import dflash_sglang
from dflash_sglang.host import bootstrap

PTH = Path(dflash_sglang.__file__).parent / "host" / "dflash_sglang_cpu.pth"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python -m sglang.launch_server --model-path m --device cpu", True),
        ("python -m sglang.launch_server --device=cpu --model-path m", True),
        ("python /venv/bin/sglang serve --model-path m --device cpu", True),
        ("python /venv/bin/dflash2 serve --device cpu", True),
        ("python -m sglang.launch_server --model-path m --device cuda", False),
        ("python -m sglang.launch_server --model-path cpu", False),
        ("python train.py --device cpu", False),
        ("python", False),
    ],
)
def test_cpu_device_is_recognised_only_on_a_server_command_line(command, expected):
    assert bootstrap.asks_for_cpu_device(command.split()) is expected


def test_install_leaves_a_process_alone_that_asks_for_nothing():
    environ: dict[str, str] = {}
    assert bootstrap.install(["python", "train.py"], environ) is False
    assert environ == {}


def test_device_cpu_sets_the_engine_variable_where_no_cuda_driver_is(monkeypatch):
    monkeypatch.setattr(bootstrap, "cuda_driver_present", lambda: False)
    monkeypatch.setattr(bootstrap, "_hook_kernel_loader", lambda: None)
    environ: dict[str, str] = {}
    argv = ["python", "-m", "sglang.launch_server", "--device", "cpu"]
    assert bootstrap.install(argv, environ) is True
    assert environ == {bootstrap.CPU_ENGINE_VARIABLE: "1", "GOMP_SPINCOUNT": "20000"}


@pytest.mark.parametrize("chosen", [{"OMP_WAIT_POLICY": "ACTIVE"}, {"GOMP_SPINCOUNT": "1000"}])
def test_a_users_choice_of_how_threads_wait_is_kept(chosen, monkeypatch):
    monkeypatch.setattr(bootstrap, "_hook_kernel_loader", lambda: None)
    environ = {bootstrap.CPU_ENGINE_VARIABLE: "1"} | chosen
    assert bootstrap.install(["python"], environ) is True
    assert environ == {bootstrap.CPU_ENGINE_VARIABLE: "1"} | chosen


def test_device_cpu_changes_nothing_where_a_cuda_driver_is(monkeypatch):
    monkeypatch.setattr(bootstrap, "cuda_driver_present", lambda: True)
    environ: dict[str, str] = {}
    argv = ["python", "-m", "sglang.launch_server", "--device", "cpu"]
    assert bootstrap.install(argv, environ) is False
    assert environ == {}


def test_a_user_who_disabled_the_cpu_engine_is_obeyed(monkeypatch):
    monkeypatch.setattr(bootstrap, "cuda_driver_present", lambda: False)
    environ = {bootstrap.CPU_ENGINE_VARIABLE: "0"}
    argv = ["python", "-m", "sglang.launch_server", "--device", "cpu"]
    assert bootstrap.install(argv, environ) is False


def _run_startup_line(arguments: list[str], **environ: str) -> str:
    """Execute the .pth line as ``site`` does; report whether our package was imported."""
    line = PTH.read_text().strip()
    assert line.startswith("import ") and "\n" not in line
    code = (
        f"import sys; sys.path.insert(0, {str(PTH.parents[2])!r}); exec({line!r}); "
        "print('dflash_sglang' in sys.modules, 'torch' in sys.modules)"
    )
    clean = {k: v for k, v in os.environ.items() if k != bootstrap.CPU_ENGINE_VARIABLE}
    return subprocess.run(
        [sys.executable, "-S", "-c", code, *arguments],
        env=clean | environ,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


def test_startup_line_is_inert_in_an_ordinary_process():
    assert _run_startup_line([]) == "False False"


def test_startup_line_imports_no_framework_when_the_engine_variable_is_set():
    assert _run_startup_line([], SGLANG_USE_CPU_ENGINE="1") == "True False"


def test_sgl_kernel_imports_without_a_cuda_driver_and_has_our_operators():
    if bootstrap.cuda_driver_present():
        pytest.skip("this machine has a CUDA driver, so the native loader succeeds")
    code = (
        "from dflash_sglang.host import bootstrap; bootstrap.install(); "
        "import sgl_kernel, torch; print(hasattr(torch.ops.sgl_kernel, "
        "'assign_extend_cache_locs_cpu'))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {bootstrap.CPU_ENGINE_VARIABLE: "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.strip() == "True"
