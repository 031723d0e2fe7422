"""Drafter checkpoints: a folder with ``config.json`` and safetensors, in the published layout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from dflash_sglang.config import DFlash2Config, TokenLookup
from dflash_sglang.drafter.model import DFlash2Drafter

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

# Spellings of exporters, and a buffer that old ones stored although it follows from the config.
_ALIASES = {
    "encoder.fc.weight": "fc.weight",
    "encoder.output_norm_enc.weight": "hidden_norm.weight",
    "candidate_selector.predecessor_codebook.weight": "candidate_selector.predecessor_codebook",
    "candidate_selector.successor_codebook.weight": "candidate_selector.successor_codebook",
}
_DERIVED = "rotary_emb.inv_freq"


class CheckpointError(ValueError):
    """Drafter weights that are missing, damaged or of another model; one sentence."""


class StoredTensor(NamedTuple):
    """What a file's header says about one tensor."""

    file: Path
    name: str  # in the file
    shape: tuple[int, ...]
    dtype: torch.dtype


class Shaped(Protocol):
    """A tensor, or what is known about one."""

    @property
    def shape(self) -> tuple[int, ...]: ...


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
    stored = stored_tensors(path)
    check_tensors(stored, dict(drafter.named_parameters()), path)
    weights = {name: _read(tensor).to(device, dtype) for name, tensor in stored.items()}
    drafter.load_state_dict(weights, assign=True)
    return drafter.to(device).eval()


def save_drafter(drafter: DFlash2Drafter, path: str | Path) -> None:
    """Write ``config.json`` and ``model.safetensors`` in the published layout, dtype unchanged."""
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: tensor.detach().cpu().contiguous() for name, tensor in drafter.state_dict().items()
    }
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    text = json.dumps(drafter.config.to_dict(), indent=2) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")


def canonical_name(name: str) -> str:
    """The parameter that a stored tensor belongs to, without the spellings of exporters."""
    name = name.removeprefix("model.")
    return _ALIASES.get(name, name)


def stored_tensors(path: str | Path) -> dict[str, StoredTensor]:
    """All tensors under ``path`` by canonical name, from the files' headers alone.

    Raises :class:`CheckpointError` when files are missing, damaged or not of float weights.
    """
    tensors: dict[str, StoredTensor] = {}
    for file in _weight_files(Path(path)):
        for stored in _read_header(file):
            name = canonical_name(stored.name)
            if name in tensors:
                raise CheckpointError(
                    f"{name} is stored twice in {path}: as {tensors[name].name} and {stored.name}."
                )
            tensors[name] = stored
    return tensors


def check_tensors(
    tensors: Mapping[str, Shaped], expected: Mapping[str, Shaped], path: str | Path
) -> None:
    """Raise :class:`CheckpointError` unless names and shapes are exactly the expected ones."""
    if missing := sorted(expected.keys() - tensors.keys()):
        raise CheckpointError(f"{path} lacks {_some(missing)}, which its config.json asks for.")
    if unexpected := sorted(tensors.keys() - expected.keys()):
        raise CheckpointError(f"{path} holds {_some(unexpected)}, unknown to its config.json.")
    for name, parameter in expected.items():
        if tuple(tensors[name].shape) != tuple(parameter.shape):
            raise CheckpointError(
                f"{name} in {path} has shape {list(tensors[name].shape)}, but its config.json asks "
                f"for {list(parameter.shape)}."
            )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"the tensor {names[0]}{more}"


def _read_header(file: Path) -> list[StoredTensor]:
    header: list[StoredTensor] = []
    try:
        with safe_open(file, framework="pt") as content:
            for name in content.keys():  # noqa: SIM118 (not a mapping)
                if name.endswith(_DERIVED):
                    continue
                part = content.get_slice(name)
                kind = part.get_dtype()
                if kind not in DTYPES:
                    raise CheckpointError(
                        f"{name} in {file} is stored as {kind}; a drafter's weights must be one of "
                        f"{', '.join(DTYPES)}."
                    )
                header.append(StoredTensor(file, name, tuple(part.get_shape()), DTYPES[kind]))
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file} is not a complete safetensors file: {error}.") from None
    return header


def _read(stored: StoredTensor) -> Tensor:
    with safe_open(stored.file, framework="pt") as content:
        return content.get_tensor(stored.name)


def _weight_files(folder: Path) -> list[Path]:
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    index = folder / INDEX
    if not index.is_file():
        raise CheckpointError(f"{folder} holds neither {WEIGHTS} nor {INDEX}.")
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        files = [folder / Path(name).name for name in sorted(names)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError(f"{index} is not a safetensors index with a weight_map.") from None
    for file in files:
        if not file.is_file():
            raise CheckpointError(f"{index} names {file.name}, which does not exist.")
    return files
