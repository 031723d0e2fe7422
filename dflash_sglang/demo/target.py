"""Train the demo pair's target: a small Qwen 3 chat model, from nothing, on the demo corpus.

    python -m dflash_sglang.demo.target --out DIR

The weights are a function of steps, batch, learning rate, warm-up and seed. An interrupted run goes
on from its last checkpoint with `--resume`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, NamedTuple

import torch
import typer
from rich.console import Console
from rich.progress import Progress
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from dflash_sglang.demo.corpus import conversations
from dflash_sglang.demo.dataset import IGNORED, Rows, build_rows
from dflash_sglang.demo.optimizer import Optimizer
from dflash_sglang.demo.sample import DOMAINS
from dflash_sglang.demo.tokenizer import VOCAB_SIZE, train_tokenizer

ROW_LENGTH = 512
TOKENIZER_CONVERSATIONS = 30_000
HELD_OUT_ROWS = 8  # per domain
DECAY = 0.3


class Plan(NamedTuple):
    """Everything that the weights are a function of."""

    steps: int
    batch: int  # rows of ROW_LENGTH tokens in a step
    learning_rate: float  # of the matrices; see Optimizer
    warmup: int  # steps
    seed: int


def target_config(tokenizer: PreTrainedTokenizerFast) -> Qwen3Config:
    """12 narrow layers: deep for its 8 million parameters, so that a shallow drafter pays."""
    return Qwen3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=12,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=2048,
        rope_theta=10_000.0,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def demo_tokenizer(out: Path, seed: int) -> PreTrainedTokenizerFast:
    """The tokenizer saved in `out`, trained and saved first where there is none."""
    if (out / "tokenizer.json").exists():
        return AutoTokenizer.from_pretrained(out)
    drawn = islice(conversations(seed, "training"), TOKENIZER_CONVERSATIONS)
    tokenizer = train_tokenizer(m["content"] for sample in drawn for m in sample.messages)
    tokenizer.save_pretrained(out)
    return tokenizer


def response_loss(model: torch.nn.Module, tokens: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy in nats over the labelled tokens; tokens and labels are [rows, length]."""
    logits = model(input_ids=tokens, use_cache=False).logits  # [rows, length, vocab]
    return F.cross_entropy(
        logits[:, :-1].reshape(-1, logits.shape[-1]),
        labels[:, 1:].reshape(-1),
        ignore_index=IGNORED,
    )


@torch.no_grad()
def held_out_losses(model: torch.nn.Module, held_out: dict[str, Rows]) -> dict[str, float]:
    """Nats per response token on held-out conversations, by domain."""
    model.eval()
    losses = {name: response_loss(model, *rows).item() for name, rows in held_out.items()}
    model.train()
    return losses


def rate_factor(step: int, plan: Plan) -> float:
    """Linear warm-up, then constant, then linear to zero over the last `DECAY` of the steps."""
    if step < plan.warmup:
        return (step + 1) / plan.warmup
    left, decaying = plan.steps - step, plan.steps - decay_start(plan)
    return min(1.0, left / decaying)


def decay_start(plan: Plan) -> int:
    """The step from which on the learning rate depends on the length of the run."""
    return round((1 - DECAY) * plan.steps)


def save_checkpoint(
    path: Path, model: Qwen3ForCausalLM, optimizer: Optimizer, step: int, plan: Plan
) -> None:
    """Weights, optimizer state and position; written aside first, so a cut leaves the old one."""
    tensors = {f"model.{k}": v for k, v in model.model.state_dict().items()}
    tensors |= {f"optimizer.{k}": v for k, v in optimizer.state().items()}
    partial = path.with_suffix(".partial")
    save_file(tensors, partial, metadata={"step": str(step), "plan": json.dumps(plan._asdict())})
    partial.replace(path)


def load_checkpoint(path: Path, model: Qwen3ForCausalLM, optimizer: Optimizer, plan: Plan) -> int:
    """Restore a checkpoint and return the number of steps done.

    Until the rate decays the steps do not depend on their number, so a run may still be lengthened
    or shortened then. Raises ValueError when the checkpoint differs from `plan` in anything else.
    """
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    made_under, done = Plan(**json.loads(metadata["plan"])), int(metadata["step"])
    undecided = done <= min(decay_start(made_under), decay_start(plan))
    if made_under != plan and not (undecided and made_under._replace(steps=plan.steps) == plan):
        raise ValueError(f"expected a checkpoint of {plan}, got one of {made_under}: {path}")
    tensors = load_file(path)
    model.model.load_state_dict(
        {k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")}
    )
    optimizer.load_state(
        {k.removeprefix("optimizer."): v for k, v in tensors.items() if k.startswith("optimizer.")}
    )
    return done


def save_final(out: Path, model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """The target as it is served: bfloat16 safetensors, tokenizer, generation defaults."""
    served = Qwen3ForCausalLM(model.config)
    served.load_state_dict(model.state_dict())
    served = served.to(torch.bfloat16)
    served.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    served.save_pretrained(out)
    tokenizer.save_pretrained(out)
    described = json.loads((out / "tokenizer.json").read_text(encoding="utf-8"))
    # Without its indentation the file takes 0.1 MB instead of 0.26; the repository carries it.
    (out / "tokenizer.json").write_text(
        json.dumps(described, ensure_ascii=False, separators=(",", ":")), encoding="utf-8"
    )


def batches(rows: Rows, plan: Plan, first: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """(step, tokens [batch, length], labels [batch, length]) from step `first` on."""
    for step in range(first, plan.steps):
        part = slice(step * plan.batch, (step + 1) * plan.batch)
        yield step, rows.tokens[part], rows.labels[part]


def train_target(
    out: Path, plan: Plan, *, resume: bool, compiled: bool, log_every: int, save_minutes: float
) -> None:
    """Train by `plan`, logging to `out/log.jsonl`, and leave the target in `out/final`."""
    console = Console()
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(plan.seed)
    tokenizer = demo_tokenizer(out, plan.seed)
    rows = build_rows(tokenizer, plan.steps * plan.batch, ROW_LENGTH, plan.seed, "training")
    held_out = {
        name: build_rows(tokenizer, HELD_OUT_ROWS, ROW_LENGTH, plan.seed, "held-out", name)
        for name in DOMAINS
    }
    model = Qwen3ForCausalLM(target_config(tokenizer))
    optimizer = Optimizer(model, plan.learning_rate)
    checkpoint = out / "checkpoint.safetensors"
    first = load_checkpoint(checkpoint, model, optimizer, plan) if resume else 0
    forward = torch.compile(model) if compiled else model
    parameters = sum(p.numel() for p in model.parameters())
    answered = (rows.labels != IGNORED).float().mean()
    console.print(
        f"{parameters:,} parameters, {rows.tokens.numel():,} tokens, {answered:.0%} labelled"
    )

    started = saved = time.monotonic()
    with Progress(console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("training", total=plan.steps, completed=first)
        for step, tokens, labels in batches(rows, plan, first):
            loss = response_loss(forward, tokens, labels)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step(rate_factor(step, plan))
            progress.update(bar, completed=step + 1, description=f"loss {loss.item():.3f}")
            done = step + 1
            if done % log_every == 0 or done == plan.steps:
                entry = {
                    "step": done,
                    "loss": round(loss.item(), 4),
                    "tokens_per_s": round(
                        (done - first) * tokens.numel() / (time.monotonic() - started)
                    ),
                    "held_out": {
                        k: round(v, 4) for k, v in held_out_losses(model, held_out).items()
                    },
                }
                console.print(json.dumps(entry), soft_wrap=True)
                with (out / "log.jsonl").open("a") as log:
                    log.write(json.dumps(entry) + "\n")
            if time.monotonic() - saved > 60 * save_minutes:
                save_checkpoint(checkpoint, model, optimizer, done, plan)
                saved = time.monotonic()
    save_checkpoint(checkpoint, model, optimizer, plan.steps, plan)
    save_final(out / "final", model, tokenizer)
    console.print(f"target saved in {out / 'final'}")


def main(
    out: Annotated[Path, typer.Option(help="folder for checkpoint, log and the final target")],
    steps: Annotated[int, typer.Option(min=1)] = 1200,
    batch: Annotated[int, typer.Option(min=1, help="rows of 512 tokens in a step")] = 8,
    learning_rate: float = 0.02,
    warmup: Annotated[int, typer.Option(min=1, help="steps")] = 40,
    seed: int = 0,
    resume: Annotated[bool, typer.Option(help="go on from the checkpoint in OUT")] = False,
    compile: Annotated[bool, typer.Option(help="torch.compile, about a quarter faster")] = True,
    log_every: Annotated[int, typer.Option(min=1, help="steps between held-out losses")] = 50,
    save_minutes: Annotated[float, typer.Option(min=0.1)] = 4.0,
) -> None:
    """Train the demo target from nothing."""
    if resume and not (out / "checkpoint.safetensors").exists():
        raise typer.BadParameter(f"expected a checkpoint to resume from in {out}, found none")
    plan = Plan(steps, batch, learning_rate, warmup, seed)
    train_target(
        out, plan, resume=resume, compiled=compile, log_every=log_every, save_minutes=save_minutes
    )


if __name__ == "__main__":
    typer.run(main)
