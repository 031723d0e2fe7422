"""`dflash2 capture`: the target writes responses and reads them again, its tap features are stored.

A drafter learns to predict *this* target, so labels are text the target generated itself
(DFlash, arXiv 2602.06036). Features come from one causal read of prompt and response, which gives
the same hidden states as decoding did, in far fewer forwards.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from .generate import generate_batch, sampled_draw
from .prompts import Prompt
from .provenance import library_versions
from .store import CapturePlan, Manifest, Shard, pack_shard, read_shard, sha256_of, write_shard
from .target import Target

# Rows that are read together are cut so that a batch stays near this many tokens.
_READ_TOKENS = 8192


@dataclass(frozen=True)
class CaptureOptions:
    """How responses are generated.

    temperatures: prompt i of a shard is answered at temperatures[i % len], after a seeded shuffle;
    0 is greedy. batch_size: prompts generated together; shard_size: prompts a shard.
    """

    max_new_tokens: int = 256
    temperatures: tuple[float, ...] = (0.0,)
    batch_size: int = 128
    shard_size: int = 512
    seed: int = 0


def respond(
    target: Target,
    prompts: Sequence[Prompt],
    stop_token_ids: Sequence[int],
    options: CaptureOptions,
    shard_index: int,
) -> list[tuple[Prompt, list[int], float]]:
    """Responses to the prompts of one shard: (prompt, response tokens, temperature) each.

    The draws depend on (seed, shard index) and the place in the shard only, so a resumed capture
    writes the same shards.
    """
    order = random.Random(f"{options.seed}/{shard_index}")
    warmth = [options.temperatures[i % len(options.temperatures)] for i in range(len(prompts))]
    order.shuffle(warmth)
    generator = torch.Generator().manual_seed(options.seed * 1_000_003 + shard_index)
    seeds = torch.randint(2**63 - 1, (len(prompts),), generator=generator)
    # Neighbours in length share a batch, so that little of it is padding.
    by_length = sorted(range(len(prompts)), key=lambda i: len(prompts[i].tokens))
    responses: list[list[int]] = [[] for _ in prompts]
    for start in range(0, len(by_length), options.batch_size):
        chosen = by_length[start : start + options.batch_size]
        heat = torch.tensor([warmth[i] for i in chosen], device=target.device)
        answers = generate_batch(
            target,
            [prompts[i].tokens for i in chosen],
            options.max_new_tokens,
            stop_token_ids,
            sampled_draw(heat, seeds[chosen].to(target.device)),
        )
        for i, answer in zip(chosen, answers, strict=True):
            responses[i] = answer
    return list(zip(prompts, responses, warmth, strict=True))


def read_features(target: Target, texts: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """Tap features of every text, [T_i, n_taps * D] bf16 on the CPU, in order."""
    features: list[torch.Tensor] = [torch.empty(0)] * len(texts)
    by_length = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    while by_length:
        rows = max(1, _READ_TOKENS // len(texts[by_length[-1]]))
        chosen, by_length = by_length[-rows:], by_length[:-rows]
        tokens = torch.zeros(len(chosen), len(texts[chosen[-1]]), dtype=torch.int64)
        for row, i in enumerate(chosen):
            tokens[row, : len(texts[i])] = torch.tensor(texts[i])
        read = target.read(tokens.to(target.device)).features.to("cpu", torch.bfloat16)
        for row, i in enumerate(chosen):
            features[i] = read[row, : len(texts[i])].clone()
    return features


def capture_shard(
    target: Target,
    prompts: Sequence[Prompt],
    stop_token_ids: Sequence[int],
    options: CaptureOptions,
    shard_index: int,
) -> Shard:
    """One shard in memory: the online mode, and what `capture` writes to disk."""
    samples = respond(target, prompts, stop_token_ids, options, shard_index)
    features = read_features(target, [p.tokens + response for p, response, _ in samples])
    return pack_shard(samples, features)


def capture(
    target: Target,
    prompts: Sequence[Prompt],
    stop_token_ids: Sequence[int],
    options: CaptureOptions,
    plan: CapturePlan,
    out: Path,
    console: Console | None = None,
) -> Manifest:
    """Write all shards that `out` lacks, then its manifest.

    Raises:
        DataError: `out` holds a capture under another plan.
    """
    out.mkdir(parents=True, exist_ok=True)
    plan.claim(out)
    starts = range(0, len(prompts), options.shard_size)
    names = [f"shard-{i:05d}.safetensors" for i in range(len(starts))]
    tokens = answers = 0
    with _progress(console or Console(stderr=True)) as bar:
        task = bar.add_task("capture", total=len(names), note="")
        for index, (start, name) in enumerate(zip(starts, names, strict=True)):
            began, fresh = time.monotonic(), not (out / name).exists()
            if fresh:
                part = prompts[start : start + options.shard_size]
                shard = capture_shard(target, part, stop_token_ids, options, index)
                write_shard(shard, out / name)
            else:
                shard = read_shard(out / name)
            answered = shard.tokens.numel() - int(shard.response_starts.sum())
            tokens, answers = tokens + shard.tokens.numel(), answers + answered
            speed = f"{answered / (time.monotonic() - began):.0f} response tokens/s"
            bar.update(task, advance=1, note=speed if fresh else "kept")
    manifest = Manifest(
        plan=plan,
        num_tokens=tokens,
        num_response_tokens=answers,
        shards={name: sha256_of(out / name) for name in names},
        versions=library_versions(),
    )
    manifest.write(out)
    return manifest


def make_plan(
    target: Target, target_path: Path, prompts_path: Path, count: int, options: CaptureOptions
) -> CapturePlan:
    """The plan of capturing `count` prompts of a file from the target under `target_path`."""
    return CapturePlan(
        target=target_path.name,
        target_sha256=weights_sha256(target_path),
        tap_layer_ids=list(target.tap_layer_ids),
        hidden_size=target.embedding_weight.shape[1],
        vocab_size=target.embedding_weight.shape[0],
        seed=options.seed,
        max_new_tokens=options.max_new_tokens,
        temperatures=list(options.temperatures),
        batch_size=options.batch_size,
        shard_size=options.shard_size,
        prompts_sha256=sha256_of(prompts_path),
        num_samples=count,
        dtype=str(target.dtype).removeprefix("torch."),
    )


def weights_sha256(folder: Path) -> str:
    """One SHA-256 over the weight files of a model folder, names included."""
    digests = [f"{p.name} {sha256_of(p)}" for p in sorted(folder.glob("*.safetensors"))]
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("capture {task.completed}/{task.total} shards"),
        BarColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
        disable=not console.is_terminal,
    )
