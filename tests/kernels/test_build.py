"""Building the kernels: flags by machine, private cache, clear failures."""

import logging

import pytest

from dflash_sglang.kernels import build, cuda, library


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv(build.CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def sources(monkeypatch, tmp_path):
    """A tiny csrc of its own, so that a test compiles in a moment."""
    (tmp_path / "csrc" / "cpu").mkdir(parents=True)
    source = tmp_path / "csrc" / "cpu" / "one.cpp"
    source.write_text('extern "C" int one() { return 1; }\n')
    monkeypatch.setattr(build, "source_directory", lambda: tmp_path / "csrc")
    return source


AVX512 = {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2"}


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        (AVX512, ("-march=x86-64-v4",)),
        ({*AVX512, "avx512_bf16"}, ("-march=x86-64-v4", "-mavx512bf16")),
        ({"avx512f", "avx2", "fma", "f16c", "bmi2"}, ("-march=x86-64-v3",)),
        ({"avx2"}, ()),
        (set(), ()),
    ],
)
def test_instruction_set_follows_the_processor(features, expected, monkeypatch):
    monkeypatch.setattr(build.platform, "machine", lambda: "x86_64")
    assert build.target_flags(features) == expected


def test_other_architectures_get_the_compilers_default(monkeypatch):
    monkeypatch.setattr(build.platform, "machine", lambda: "aarch64")
    assert build.target_flags({"avx2", "fma", "f16c", "bmi2"}) == ()


def test_unknown_mode_is_refused(monkeypatch):
    monkeypatch.setenv(build.MODE_VARIABLE, "fast")
    with pytest.raises(ValueError, match="must be one of compiled, reference, got 'fast'"):
        build.kernel_mode()


def test_library_is_built_once_and_again_when_a_source_changes(cache, sources):
    first = build.build_library()
    stamp = first.stat().st_mtime_ns
    assert build.build_library() == first and first.stat().st_mtime_ns == stamp
    sources.write_text('extern "C" int two() { return 2; }\n')
    second = build.build_library()
    assert second != first and second.exists()


def test_cache_directory_is_private(cache, sources):
    build.build_library()
    assert cache.stat().st_mode & 0o777 == 0o700


def test_cache_that_others_may_write_is_refused(cache, sources):
    cache.mkdir()
    cache.chmod(0o777)
    with pytest.raises(build.KernelBuildError, match="writable by no other"):
        build.build_library()


def test_compiler_error_names_the_command_and_shows_the_log(cache, sources):
    sources.write_text("this is not C++\n")
    with pytest.raises(build.KernelBuildError, match=r"(?s)Command: .*one\.cpp.*Log:.*error"):
        build.build_library()
    assert not list(cache.glob("*.so"))


def test_missing_compiler_is_named(cache, sources, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(build.KernelBuildError, match="'no-such-compiler' was not found"):
        build.build_library()


def test_real_sources_are_found():
    assert (build.source_directory() / "cpu" / "attention.cpp").is_file()


def test_further_flags_make_another_library(cache, sources, monkeypatch):
    plain = build.build_library()
    monkeypatch.setenv(build.FLAGS_VARIABLE, "-DNOTHING -O1")
    assert build.build_library() != plain


@pytest.fixture
def fresh_service():
    """What serves is decided once a process; a test decides for itself."""
    library.serve.cache_clear()
    library.load_device.cache_clear()
    yield
    library.serve.cache_clear()
    library.load_device.cache_clear()


def test_a_device_whose_kernels_do_not_build_is_served_by_the_references(
    fresh_service, monkeypatch, caplog
):
    def refuse():
        raise build.KernelBuildError("The CUDA kernels need nvcc, which was not found.")

    monkeypatch.setenv(build.MODE_VARIABLE, "compiled")
    monkeypatch.setattr(cuda, "current_device", refuse)
    assert [library.serve("cuda") for _ in range(2)] == ["reference"] * 2
    told = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert told == [
        "dflash2 computes with PyTorch's references on cuda. "
        "The CUDA kernels need nvcc, which was not found."
    ]


def test_a_device_without_kernels_is_served_by_the_references(fresh_service, monkeypatch, caplog):
    monkeypatch.setenv(build.MODE_VARIABLE, "compiled")
    assert library.serve("npu") == "reference"
    assert "Kernels exist for cuda, xpu, not for npu." in caplog.text


def test_forced_references_open_no_device(fresh_service, monkeypatch):
    monkeypatch.setenv(build.MODE_VARIABLE, "reference")
    monkeypatch.setattr(cuda, "current_device", lambda: pytest.fail("opened"))
    assert library.serve("cuda") == "reference"
