"""Exporting a drafter: vLLM gets what its own code reads, and is refused what it cannot serve.

Where vLLM imports, its own parsing code judges too; everywhere ``vllm_schema.json`` does, which
records what the named version accepts. No model is run by vLLM: its engine needs a device.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from drafters import drafter_config, random_weights
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, Qwen3Config

from dflash_sglang import cli
from dflash_sglang.config import DFlash2Config
from dflash_sglang.drafter import DFlash2Drafter, load_drafter, save_drafter
from dflash_sglang.drafter.export import ExportError, VllmExport, export_drafter

SCHEMA = json.loads(Path(__file__).with_name("vllm_schema.json").read_text())
TYPES = {"bool": bool, "dict": dict, "float": float, "int": int, "list": list, "str": str}
WINDOW = {"sliding_window": 16, "layer_types": ["sliding_attention"] * 2 + ["full_attention"]}
DFLASH2 = {"conv": (2, 8), "selector": (8, 4)}
SERVED: dict[str, dict[str, Any]] = {
    "plain": {"attention_bias": True, "is_causal": True},
    "dflash2": {**DFLASH2, "drafter_fields": {"input_embedding_scale": 8.0}},
    "sliding": {**DFLASH2, **WINDOW},
    "scaled": {"rope_parameters": {"rope_type": "linear", "rope_theta": 5e5, "factor": 4.0}},
}
STATIC = ["DFlash2StaticDraftModel"]


def stored(folder: Path, dtype: torch.dtype = torch.float32, **changes: Any) -> DFlash2Drafter:
    drafter = DFlash2Drafter(DFlash2Config.from_dict(drafter_config(**changes)))
    random_weights(drafter)
    save_drafter(drafter.to(dtype), folder)
    return drafter


def exported(tmp_path: Path, target: str = "some/target", **options: str) -> VllmExport:
    return export_drafter("vllm", tmp_path / "drafter", tmp_path / "out", target, **options)


def refusal(tmp_path: Path, **options: str) -> str:
    with pytest.raises(ExportError) as caught:
        exported(tmp_path, **options)
    return str(caught.value)


def target(folder: Path, **changes: Any) -> str:
    shape = {"vocab_size": 97, "hidden_size": 64, "num_hidden_layers": 8}
    Qwen3Config(**{**shape, **changes}).save_pretrained(folder)
    return str(folder)


def run_cli(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["dflash2", "export", *words])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return int(caught.value.code or 0)


def vllm_speculative_keys() -> set[str]:
    try:
        from vllm.config import SpeculativeConfig
    except ImportError:
        return set(SCHEMA["speculative_config"]["keys"])
    return {field.name for field in dataclasses.fields(SpeculativeConfig)}


def assert_speculative_config(config: dict[str, Any], written: VllmExport) -> None:
    rules = SCHEMA["speculative_config"]
    assert set(config) <= vllm_speculative_keys()
    assert {key: type(value) for key, value in config.items()} == {
        key: TYPES[name] for key, name in rules["types"].items()
    }
    assert config["method"] == rules["method"]
    assert Path(config["model"]) == written.folder and written.folder.is_absolute()
    assert config["num_speculative_tokens"] == 7  # a block of 8, the anchor not drafted


@pytest.mark.parametrize("kind", SERVED)
@pytest.mark.parametrize("dtype", ["bfloat16", "stored"])
def test_exported_drafter_reads_back_equal(tmp_path: Path, kind: str, dtype: str) -> None:
    drafter = stored(tmp_path / "drafter", **SERVED[kind])
    written = exported(tmp_path, dtype=dtype)
    loaded = load_drafter(written.folder)
    assert loaded.config == drafter.config
    expected = (drafter.bfloat16() if dtype == "bfloat16" else drafter).state_dict()
    assert loaded.state_dict().keys() == expected.keys()
    for name, tensor in loaded.state_dict().items():
        assert tensor.dtype == expected[name].dtype and torch.equal(tensor, expected[name]), name


def test_only_configuration_and_weights_are_exported(tmp_path: Path) -> None:
    stored(tmp_path / "drafter", **DFLASH2)
    for name in ("draft_vocabulary.json", "provenance.json", "curve.png"):
        (tmp_path / "drafter" / name).write_text("[]")
    folder = exported(tmp_path).folder
    assert {file.name for file in folder.iterdir()} == {"config.json", "model.safetensors"}


@pytest.mark.parametrize("kind", SERVED)
def test_config_states_what_vllm_reads(tmp_path: Path, kind: str) -> None:
    stored(tmp_path / "drafter", **SERVED[kind])
    folder = exported(tmp_path).folder
    raw = json.loads((folder / "config.json").read_text())
    (architecture,) = raw["architectures"]
    rules = SCHEMA["config"]
    for part, fields in (
        (raw, rules["top_level"]),
        (raw["dflash_config"], rules["dflash_config"][architecture]),
    ):
        for key, name in fields.items():
            assert type(part[key]) is TYPES[name], key
    # vLLM reads the file through transformers, so its values must survive that.
    read = AutoConfig.from_pretrained(folder)
    for key in (*rules["top_level"], *rules["optional_top_level"], "dflash_config"):
        assert getattr(read, key, None) == raw.get(key), key


@pytest.mark.parametrize("kind", SERVED)
def test_tensors_carry_the_names_that_vllm_loads(tmp_path: Path, kind: str) -> None:
    drafter = stored(tmp_path / "drafter", **SERVED[kind])
    patterns = SCHEMA["tensors"][drafter.config.architecture]
    names = load_file(exported(tmp_path).folder / "model.safetensors").keys()
    for name in names:
        assert sum(re.fullmatch(pattern, name) is not None for pattern in patterns) == 1, name
    for pattern in patterns:
        assert any(re.fullmatch(pattern, name) for name in names), pattern


def test_spellings_that_vllm_does_not_load_are_replaced(tmp_path: Path) -> None:
    drafter = stored(tmp_path / "drafter", **DFLASH2)
    file = tmp_path / "drafter" / "model.safetensors"
    renamed = {
        f"model.{name}.weight" if name.endswith("_codebook") else f"model.{name}": tensor
        for name, tensor in load_file(file).items()
    }
    save_file(renamed, file)
    assert load_file(exported(tmp_path).folder / "model.safetensors").keys() == (
        drafter.state_dict().keys()
    )


def test_mask_given_by_its_text_is_exported_as_its_id(tmp_path: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    stored(tmp_path / "drafter", **DFLASH2)
    file = tmp_path / "drafter" / "config.json"
    config = json.loads(file.read_text())
    del config["dflash_config"]["mask_token_id"]
    file.write_text(json.dumps(config | {"mask_token": "w41"}))
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(97)}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(tmp_path / "target")
    folder = exported(tmp_path, target(tmp_path / "target")).folder
    config = json.loads((folder / "config.json").read_text())
    assert config["dflash_config"]["mask_token_id"] == 41 and "mask_token" not in config


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"architectures": STATIC, "drafter_fields": {"conv_kernel_size": 3}}, STATIC[0]),
        ({**DFLASH2, "drafter_fields": {"shift_label": True}}, "shift_label"),
        ({"drafter_fields": {"sample_from_anchor": True}}, "shift_label"),
        ({"conv": (2, 8)}, "a convolution but without a candidate selector"),
        ({"selector": (8, 4)}, "a candidate selector but without a convolution"),
        ({"drafter_fields": {"input_embedding_scale": 8.0}}, "input_embedding_scale=8"),
    ],
)
def test_what_vllm_cannot_serve_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    stored(tmp_path / "drafter", **changes)
    sentence = refusal(tmp_path)
    assert named in sentence and "vLLM" in sentence
    assert sentence.endswith(".") and "\n" not in sentence
    assert not (tmp_path / "out").exists()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    stored(tmp_path / "drafter", **DFLASH2)
    out = tmp_path / "out"
    out.write_text("mine")
    assert "not an empty folder" in refusal(tmp_path)
    out.unlink()
    out.mkdir()
    (out / "mine").write_text("mine")
    assert "not an empty folder" in refusal(tmp_path)
    (out / "mine").unlink()
    assert exported(tmp_path).folder == out.resolve()


def test_unknown_engine_and_dtype_are_refused(tmp_path: Path) -> None:
    stored(tmp_path / "drafter")
    assert "'int4'" in refusal(tmp_path, dtype="int4")
    with pytest.raises(ExportError, match="vllm, not for 'triton'"):
        export_drafter("triton", tmp_path / "drafter", tmp_path / "out", "some/target")


def test_target_in_a_folder_must_fit(tmp_path: Path) -> None:
    stored(tmp_path / "drafter", **DFLASH2)
    with pytest.raises(ExportError, match="hidden size is 64"):
        exported(tmp_path, target(tmp_path / "wide", hidden_size=128))
    assert not (tmp_path / "out").exists()
    written = exported(tmp_path, target(tmp_path / "fitting"))
    assert written.compared and written.target == str((tmp_path / "fitting").resolve())


@pytest.mark.parametrize("name", ["plain", "with space", 'it\'s "quoted" $HOME'])
def test_command_survives_the_shell(tmp_path: Path, name: str) -> None:
    stored(tmp_path / "drafter", **DFLASH2)
    written = export_drafter("vllm", tmp_path / "drafter", tmp_path / name, f"some/{name}")
    program, verb, model, flag, config = shlex.split(written.command)
    assert (program, verb, flag) == ("vllm", "serve", "--speculative-config")
    assert model == f"some/{name}"
    assert_speculative_config(json.loads(config), written)


@pytest.mark.parametrize("name", ["plain", 'it\'s "quoted" \\n'])
def test_snippet_passes_the_arguments_that_vllm_has(tmp_path: Path, name: str) -> None:
    stored(tmp_path / "drafter", **DFLASH2)
    written = export_drafter("vllm", tmp_path / "drafter", tmp_path / name, f"some/{name}")
    calls = [node for node in ast.walk(ast.parse(written.snippet)) if isinstance(node, ast.Call)]
    (engine,) = (call for call in calls if ast.unparse(call.func) == "LLM")
    arguments = {word.arg: ast.literal_eval(word.value) for word in engine.keywords}
    assert not engine.args and set(arguments) == set(SCHEMA["engine_arguments"]["used"])
    assert not set(arguments) & set(SCHEMA["engine_arguments"]["dropped"])
    assert arguments["model"] == f"some/{name}"
    assert_speculative_config(arguments["speculative_config"], written)


def test_command_prints_how_vllm_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stored(tmp_path / "drafter", **DFLASH2)
    words = [str(tmp_path / "drafter"), "--for", "vllm", "--out", str(tmp_path / "out")]
    assert run_cli(monkeypatch, *words, "--target", "some/target") == 0
    printed = capsys.readouterr()
    line, _, snippet = printed.out.partition("\n\n")
    assert shlex.split(line)[:3] == ["vllm", "serve", "some/target"]
    ast.parse(snippet)
    assert "some/target is no folder here" in printed.err
    tensors = load_file(tmp_path / "out" / "model.safetensors").values()
    assert {tensor.dtype for tensor in tensors} == {torch.bfloat16}

    # The folder is no longer empty: one sentence, and a code that a script sees.
    assert run_cli(monkeypatch, *words, "--target", "some/target") == 1
    printed = capsys.readouterr()
    assert not printed.out and printed.err.count("\n") == 1
    assert "nothing is overwritten" in printed.err


def test_folder_without_a_drafter_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(tmp_path / "none"), "--for", "vllm", "--out", str(tmp_path / "out")]
    assert run_cli(monkeypatch, *words, "--target", "some/target") == 1
    printed = capsys.readouterr().err
    assert "is not a drafter" in printed and printed.count("\n") == 1


@pytest.mark.parametrize("kind", SERVED)
def test_vllms_own_code_reads_the_config(tmp_path: Path, kind: str) -> None:
    vllm = pytest.importorskip("vllm", reason="vLLM is not installed; its schema was checked")
    from vllm.config import SpeculativeConfig
    from vllm.model_executor.models.registry import ModelRegistry
    from vllm.transformers_utils.configs.eagle import EAGLEConfig

    drafter = stored(tmp_path / "drafter", **SERVED[kind])
    folder = exported(tmp_path).folder
    read = EAGLEConfig(AutoConfig.from_pretrained(folder), method="dflash", model_type="eagle")
    assert read.architectures == [drafter.config.architecture]
    assert drafter.config.architecture in ModelRegistry.get_supported_archs()
    assert read.dflash_config["target_layer_ids"] == list(drafter.config.target_layer_ids)
    if vllm.__version__ == SCHEMA["vllm"]:
        keys = {field.name for field in dataclasses.fields(SpeculativeConfig)}
        assert keys == set(SCHEMA["speculative_config"]["keys"])
