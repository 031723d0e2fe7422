"""Captured text and features on disk: safetensors shards beside one manifest.

A shard is complete or absent (written under another name, then renamed), so an interrupted capture
goes on with the first shard that is missing. The manifest is written last and names every shard's
SHA-256: a directory with a manifest is a finished capture.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from .errors import DataError

MANIFEST = "manifest.json"
PLAN = "plan.json"


class Shard(NamedTuple):
    """Samples of one shard, concatenated; sample i is tokens[offsets[i] : offsets[i + 1]]."""

    tokens: Tensor  # [N] int32
    features: Tensor  # [N, n_taps * D] bf16, of the same positions
    offsets: Tensor  # [S + 1] int64
    response_starts: Tensor  # [S] int64, relative to the sample
    temperatures: Tensor  # [S] fp32, 0 = greedy
    ids: list[str]  # S prompt ids
    domains: list[str]  # S


@dataclass(frozen=True)
class CapturePlan:
    """Everything the shards are a function of."""

    target: str
    target_sha256: str  # of its weights
    tap_layer_ids: list[int]
    hidden_size: int  # of the target; features have len(tap_layer_ids) * hidden_size columns
    vocab_size: int
    seed: int
    max_new_tokens: int
    temperatures: list[float]
    batch_size: int
    shard_size: int
    prompts_sha256: str
    num_samples: int
    dtype: str = "float32"  # that the target computed in

    def claim(self, folder: Path) -> None:
        """Write the plan to `folder`, or raise DataError when another plan has begun there."""
        path = folder / PLAN
        if not path.exists():
            write_text(path, json.dumps(asdict(self), indent=2) + "\n")
            return
        begun = json.loads(path.read_text(encoding="utf-8"))
        differing = {
            name: f"{begun.get(name)} there, {value} here"
            for name, value in asdict(self).items()
            if begun.get(name) != value
        }
        if differing:
            raise DataError(f"{folder} holds another capture: {differing}")


@dataclass(frozen=True)
class Manifest:
    """A finished capture: enough to make it again, and to refuse a drafter that does not fit."""

    plan: CapturePlan
    num_tokens: int
    num_response_tokens: int
    shards: dict[str, str]  # file name -> sha256
    versions: dict[str, str]

    def write(self, folder: Path) -> None:
        write_text(folder / MANIFEST, json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def read(cls, folder: str | Path) -> Manifest:
        """Raises DataError when `folder` holds no finished capture."""
        path = Path(folder) / MANIFEST
        if not path.is_file():
            raise DataError(f"{folder} holds no finished capture: {MANIFEST} is missing")
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return cls(**(content | {"plan": CapturePlan(**content["plan"])}))
        except (TypeError, KeyError, json.JSONDecodeError) as error:
            raise DataError(f"{path} is no capture manifest: {error}") from error

    def fingerprint(self) -> str:
        """SHA-256 of the manifest's content, which covers every shard."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


def write_shard(shard: Shard, path: Path) -> None:
    """Write atomically; ids and domains of the samples travel in the safetensors header."""
    columns: dict[str, Any] = shard._asdict()
    names = {name: columns.pop(name) for name in ("ids", "domains")}
    partial = path.with_suffix(".partial")
    # One entry: the order of several is random, and the same shard must give the same bytes.
    header = {"samples": json.dumps(names)}
    save_file({k: v.contiguous() for k, v in columns.items()}, partial, metadata=header)
    os.replace(partial, path)


def read_shard(path: Path) -> Shard:
    """Tensors of a shard, memory-mapped where the platform allows it."""
    try:
        with safe_open(path, framework="pt") as file:
            names = json.loads(file.metadata()["samples"])
            columns = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except Exception as error:
        raise DataError(f"{path} cannot be read as a capture shard: {error}") from error
    return Shard(**columns, **names)


def pack_shard(samples: list[tuple[Any, list[int], float]], features: list[Tensor]) -> Shard:
    """`samples` of (Prompt, response tokens, temperature) with their features [T_i, n_taps * D]."""
    texts = [torch.tensor(prompt.tokens + response) for prompt, response, _ in samples]
    lengths = torch.tensor([0] + [len(text) for text in texts])
    return Shard(
        tokens=torch.cat(texts).to(torch.int32),
        features=torch.cat(features).to(torch.bfloat16),
        offsets=lengths.cumsum(0),
        response_starts=torch.tensor([len(prompt.tokens) for prompt, _, _ in samples]),
        temperatures=torch.tensor([t for _, _, t in samples], dtype=torch.float32),
        ids=[prompt.id for prompt, _, _ in samples],
        domains=[prompt.domain for prompt, _, _ in samples],
    )


def sha256_of(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_text(path: Path, text: str) -> None:
    """Replace a text file atomically."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
