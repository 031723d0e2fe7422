"""Building the kernels: flags by machine, private cache, clear failures."""

import pytest

from dflash_sglang.kernels import build


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


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        ({"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2"}, ("-march=x86-64-v4",)),
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
