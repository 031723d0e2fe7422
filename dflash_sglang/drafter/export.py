"""A drafter's checkpoint in the form that another engine reads, and how to start it there.

vLLM reads the published layout, so a drafter is written as it is, under the published names: a
``model.`` prefix or a codebook's ``.weight``, which we read too, stop its loader. What vLLM would
refuse at its start, or read past and then draft something else, is refused here by name. All of it
was read in the sources of vLLM 0.33.0: ``config/speculative.py``,
``model_executor/models/qwen3_dflash.py`` and ``qwen3_dflash2.py``,
``v1/worker/gpu/spec_decode/dflash/speculator.py``. Multiplier and soft cap of a plain DFlash
drafter are written although vLLM does not apply them there: they keep the order of the logits, so
its greedy drafts, the default, are the same.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import NamedTuple

import torch

from dflash_sglang.config import DFlash2Config
from dflash_sglang.config.schema import STATIC_ARCHITECTURE
from dflash_sglang.drafter.checkpoint import load_drafter, save_drafter
from dflash_sglang.drafter.inspect import inspect_checkpoint

ENGINES = ("vllm",)
DTYPES: dict[str, torch.dtype | None] = {"bfloat16": torch.bfloat16, "stored": None}


class ExportError(ValueError):
    """A drafter that the other engine cannot serve, or a folder in the way; one sentence."""


class VllmExport(NamedTuple):
    """A drafter written for vLLM, and its target."""

    folder: Path  # absolute
    target: str  # an absolute folder or a name
    num_draft_tokens: int
    compared: bool  # whether the target was here to be compared with

    @property
    def speculative_config(self) -> dict[str, str | int]:
        """What ``--speculative-config`` and ``LLM(speculative_config=...)`` take.

        The method is stated because vLLM guesses it from the folder's name; the number of draft
        tokens because vLLM has no default and does not read the block size: more than were trained
        would run, and be drafted badly.
        """
        return {
            "method": "dflash",
            "model": str(self.folder),
            "num_speculative_tokens": self.num_draft_tokens,
        }

    @property
    def command(self) -> str:
        """The shell's line that serves the pair."""
        config = json.dumps(self.speculative_config)
        return shlex.join(["vllm", "serve", self.target, "--speculative-config", config])

    @property
    def snippet(self) -> str:
        """The same in Python, with one question."""
        return f"""\
from vllm import LLM, SamplingParams

llm = LLM(
    model={json.dumps(self.target)},
    speculative_config={json.dumps(self.speculative_config)},
)
answers = llm.chat(
    [{{"role": "user", "content": "Write a haiku about rain."}}],
    SamplingParams(temperature=0, max_tokens=128),
)
print(answers[0].outputs[0].text)"""


def export_drafter(
    engine: str, path: str | Path, out: str | Path, target: str, dtype: str = "bfloat16"
) -> VllmExport:
    """Write the drafter under ``path`` to the folder ``out``, for one of :data:`ENGINES`.

    ``target``: a folder, which the drafter must then fit, or a name, which is taken as it is.
    ``dtype``: a key of :data:`DTYPES`. Only the configuration and the weights are written. Raises
    :class:`ExportError`, :class:`~dflash_sglang.config.ConfigError`,
    :class:`~dflash_sglang.drafter.checkpoint.CheckpointError` or
    :class:`~dflash_sglang.drafter.inspect.InspectionError` before anything is written.
    """
    if engine not in ENGINES:
        raise ExportError(f"Drafters are exported for {', '.join(ENGINES)}, not for {engine!r}.")
    if dtype not in DTYPES:
        raise ExportError(f"The dtype must be one of {', '.join(DTYPES)}, got {dtype!r}.")
    folder = Path(out).resolve()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ExportError(f"{out} exists and is not an empty folder; nothing is overwritten.")
    compared = Path(target).is_dir()
    inspection = inspect_checkpoint(path, target if compared else None)
    if inspection.mismatches:
        raise ExportError(inspection.mismatches[0])

    def mask_token_id(_: str) -> int:
        # A mask that is given by its text was looked up by now; vLLM wants its id.
        return inspection.mask_token_id

    config = DFlash2Config.from_pretrained(path, mask_token_id)
    _refuse_what_vllm_lacks(config)
    save_drafter(load_drafter(path, DTYPES[dtype], token_id=mask_token_id), folder)
    name = str(Path(target).resolve()) if compared else target
    return VllmExport(folder, name, config.num_draft_tokens, compared)


def _refuse_what_vllm_lacks(config: DFlash2Config) -> None:
    if config.architecture == STATIC_ARCHITECTURE:
        raise ExportError(
            f"vLLM has no static convolution, so it cannot serve a {STATIC_ARCHITECTURE}."
        )
    if config.shift_label:
        raise ExportError(
            "vLLM cannot serve a drafter with shift_label: there the anchor's own position drafts "
            "no token."
        )
    if (config.conv is None) != (config.selector is None):
        part, lacking = "convolution", "candidate selector"
        if config.conv is None:
            part, lacking = lacking, part
        raise ExportError(f"vLLM cannot serve a drafter with a {part} but without a {lacking}.")
    if config.selector is None and config.input_embedding_scale != 1.0:
        raise ExportError(
            f"vLLM does not apply input_embedding_scale={config.input_embedding_scale:g} to a "
            "drafter without a candidate selector, which would then draft from other embeddings."
        )
