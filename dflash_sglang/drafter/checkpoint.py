"""Drafter checkpoints: a folder with ``config.json`` and safetensors, the published layout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from dflash_sglang.config import DFlash2Config, TokenLookup
from dflash_sglang.drafter.model import DFlash2Drafter

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


class CheckpointError(ValueError):
    """Drafter weights that are missing, damaged or of another model; one sentence."""


def load_drafter(
    path: str | Path,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    token_id: TokenLookup | None = None,
) -> DFlash2Drafter:
    """The drafter stored under ``path``, in evaluation mode.

    ``dtype`` None keeps the stored one. ``token_id`` resolves a mask given by its text (see
    :meth:`DFlash2Config.from_dict`). Raises :class:`CheckpointError` or
    :class:`~dflash_sglang.config.ConfigError`.
    """
    config = DFlash2Config.from_pretrained(path, token_id)
    with torch.device("meta"):
        drafter = DFlash2Drafter(config)
    tensors = read_tensors(path)
    check_tensors(tensors, {name: tuple(p.shape) for name, p in drafter.named_parameters()}, path)
    drafter.load_state_dict(
        {name: tensor.to(device, dtype) for name, tensor in tensors.items()}, assign=True
    )
    return drafter.to(device).eval()


def save_drafter(drafter: DFlash2Drafter, path: str | Path) -> None:
    """Write ``config.json`` and ``model.safetensors`` in the published layout, dtype as it is."""
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: tensor.detach().cpu().contiguous() for name, tensor in drafter.state_dict().items()
    }
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    text = json.dumps(drafter.config.to_dict(), indent=2) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")


def read_tensors(path: str | Path) -> dict[str, Tensor]:
    """All tensors under ``path``, by the names that the drafter's parameters carry."""
    tensors: dict[str, Tensor] = {}
    for file in _weight_files(Path(path)):
        try:
            with safe_open(file, framework="pt") as stored:
                for name in stored.keys():  # noqa: SIM118 (not a mapping)
                    tensors[canonical_name(name)] = stored.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file} is not a complete safetensors file: {error}.") from None
    return tensors


def canonical_name(name: str) -> str:
    """A tensor's name without the spellings that exporters add."""
    name = name.removeprefix("model.")
    if name.endswith("_codebook.weight"):
        name = name.removesuffix(".weight")
    return {
        "encoder.fc.weight": "fc.weight",
        "encoder.output_norm_enc.weight": "hidden_norm.weight",
    }.get(name, name)


def check_tensors(
    tensors: Mapping[str, Tensor], expected: Mapping[str, tuple[int, ...]], path: str | Path
) -> None:
    """Raise :class:`CheckpointError` unless names and shapes are exactly the expected ones."""
    if missing := sorted(expected.keys() - tensors.keys()):
        raise CheckpointError(f"{path} lacks {len(missing)} tensors, the first is {missing[0]}.")
    if unexpected := sorted(tensors.keys() - expected.keys()):
        raise CheckpointError(
            f"{path} has {len(unexpected)} tensors that its config.json does not account for, the "
            f"first is {unexpected[0]}."
        )
    for name, shape in expected.items():
        if tuple(tensors[name].shape) != shape:
            raise CheckpointError(
                f"{name} in {path} has shape {list(tensors[name].shape)}, but its config.json asks "
                f"for {list(shape)}."
            )


def _weight_files(folder: Path) -> list[Path]:
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    index = folder / INDEX
    if not index.is_file():
        raise CheckpointError(f"{folder} holds neither {WEIGHTS} nor {INDEX}.")
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError(f"{index} is not a safetensors index with a weight_map.") from None
    files = [folder / name for name in sorted(names)]
    for file in files:
        if not file.is_file():
            raise CheckpointError(f"{index} names {file.name}, which does not exist.")
    return files
