"""Command lines of capture and training: `dflash2 capture`, `dflash2 train`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from dflash_sglang.drafter import DFlash2Drafter, load_drafter
from dflash_sglang.drafter.vocabulary import listed_beside
from dflash_sglang.kernels import library

from .capture import CaptureOptions, capture, make_plan
from .data import CaptureDataset
from .defaults import choose_mask_token, default_taps, make_config, num_parameters
from .errors import DataError, TargetError, TrainingError
from .evaluate import as_json, evaluate, print_table
from .feature_scale import feature_scale, unfold
from .heldout import greedy_samples
from .objective import DraftObjective
from .options import TrainOptions
from .pace import steps_within
from .prompts import read_prompts
from .store import write_text
from .target import Target
from .trainer import Trainer, check_fit
from .training_state import STATE, stored_plan

TargetPath = Annotated[Path, typer.Option(help="folder of a Hugging Face target model")]
Device = Annotated[str, typer.Option(help="cpu, cuda, xpu, ...")]
Dtype = Annotated[
    str,
    typer.Option(help="float32, or bfloat16 as it is served: faster where the CPU has bfloat16"),
]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def capture_command(
    target: TargetPath,
    prompts: Annotated[
        Path, typer.Option(help="JSONL of prompts: messages, prompt or token_ids a line")
    ],
    out: Annotated[Path, typer.Option(help="folder of shards and manifest; resumed if it exists")],
    taps: Annotated[
        str, typer.Option(help="tap layers as 1,3,5; default: spread evenly, as train expects")
    ] = "",
    temperatures: Annotated[str, typer.Option(help="mix of temperatures, 0 is greedy")] = "0,1",
    max_new_tokens: Annotated[int, typer.Option(min=2)] = 256,
    limit: Annotated[int | None, typer.Option(help="first prompts only")] = None,
    batch_size: Annotated[int, typer.Option(min=1)] = 128,
    shard_size: Annotated[int, typer.Option(min=1)] = 512,
    seed: int = 0,
    device: Device = "cpu",
    dtype: Dtype = "float32",
) -> None:
    """Let the target answer prompts, and store its text with the features of the tap layers."""
    console = Console(stderr=True)
    precision = DTYPES[one_of(dtype, "dtype", tuple(DTYPES))]
    library.serve(device)
    tokenizer = load_tokenizer(target)
    layer_ids = numbers(taps, "taps", int) or default_taps(target_config(target).num_hidden_layers)
    model = Target.from_pretrained(str(target), layer_ids, device, precision)
    options = CaptureOptions(
        max_new_tokens,
        tuple(numbers(temperatures, "temperatures", float)),
        batch_size,
        shard_size,
        seed,
    )
    asked = read_prompts(prompts, tokenizer, limit)
    plan = make_plan(model, target, prompts, len(asked), options)
    manifest = capture(model, asked, stop_tokens(model, tokenizer), options, plan, out, console)
    console.print(
        f"{plan.num_samples} samples, {manifest.num_response_tokens:,} response tokens of "
        f"{manifest.num_tokens:,} in {out}"
    )


def train_command(
    target: TargetPath,
    data: Annotated[Path, typer.Option(help="folder that capture wrote")],
    out: Annotated[Path, typer.Option(help="folder of checkpoints, state and curve")],
    held_out: Annotated[
        Path | None, typer.Option(help="capture of other prompts at temperature 0")
    ] = None,
    held_out_samples: Annotated[int, typer.Option(min=1)] = 32,
    steps: Annotated[int | None, typer.Option(min=1)] = None,
    time_budget: Annotated[
        float | None, typer.Option(help="minutes; the number of steps is measured first")
    ] = None,
    init: Annotated[Path | None, typer.Option(help="start from this drafter checkpoint")] = None,
    block_size: Annotated[int, typer.Option(min=2)] = 8,
    layers: Annotated[int, typer.Option(min=1)] = 3,
    conv: Annotated[str, typer.Option(help="dynamic, static3, static5 or none")] = "dynamic",
    kernel_size: Annotated[int, typer.Option(min=2)] = 4,
    group_size: Annotated[int | None, typer.Option(help="of the dynamic convolution")] = None,
    selector_rank: Annotated[int, typer.Option(min=0, help="0: no selector")] = 64,
    top_k: Annotated[int, typer.Option(min=2)] = 16,
    intermediate_size: Annotated[int | None, typer.Option(help="default 3 hidden sizes")] = None,
    mask_token_id: Annotated[int | None, typer.Option(help="default: found in tokenizer")] = None,
    sequences: int = 8,
    anchors: Annotated[int, typer.Option(help="blocks a sequence")] = 24,
    gradient_accumulation: int = 1,
    learning_rate: float = 2e-3,
    warmup_steps: int = 100,
    weight_decay: float = 0.01,
    selector_weight: float = 1.0,
    precision: Annotated[str, typer.Option(help="fp32 or bf16")] = "fp32",
    compile: Annotated[
        bool, typer.Option(help="torch.compile: slow start, faster steps; needs a C++ compiler")
    ] = False,
    head_rows: Annotated[
        int | None, typer.Option(help="train on the most frequent rows of the head only")
    ] = None,
    sampled_rows: Annotated[int, typer.Option(help="and on so many others, drawn each step")] = 0,
    scale_features: Annotated[
        bool, typer.Option(help="learn on features of unit size; the checkpoint is as ever")
    ] = False,
    max_length: Annotated[int, typer.Option(help="longer texts are cut")] = 4096,
    evaluate_every: int = 500,
    save_every: int = 500,
    tree_nodes: Annotated[int, typer.Option(help="of the held-out tree, root included")] = 16,
    resume: bool = False,
    seed: int = 0,
) -> None:
    """Train a drafter on captured text; watch its held-out accept length."""
    console = Console(stderr=True)
    torch.manual_seed(seed)
    if init is not None:
        drafter = load_drafter(init, dtype=torch.float32)
    else:
        text = target_config(target)
        if mask_token_id is None:
            mask_token_id = choose_mask_token(load_tokenizer(target), text.vocab_size)
        config = make_config(
            text,
            mask_token_id,
            block_size=block_size,
            num_layers=layers,
            conv=one_of(conv, "conv", ("dynamic", "static3", "static5", "none")),
            kernel_size=kernel_size,
            group_size=group_size,
            selector_rank=selector_rank,
            top_k=top_k,
            intermediate_size=intermediate_size,
        )
        drafter = DFlash2Drafter(config)
    dataset = CaptureDataset(data, drafter.config.block_size, max_length)
    check_fit(drafter, dataset)
    scale = feature_scale(dataset) if scale_features else None
    if scale is not None and init is not None:
        unfold(drafter, scale)
    objective = objective_for(drafter, target, selector_weight, scale)
    watched = []
    if held_out is not None:
        others = CaptureDataset(held_out, drafter.config.block_size, max_length)
        watched = greedy_samples(others, held_out_samples)

    if (steps is None) == (time_budget is None):
        raise TrainingError("give exactly one of --steps and --time-budget")
    options = TrainOptions(
        steps=steps or 1,
        sequences=sequences,
        anchors=anchors,
        gradient_accumulation=gradient_accumulation,
        learning_rate=learning_rate,
        warmup_steps=warmup_steps,
        weight_decay=weight_decay,
        selector_weight=selector_weight,
        precision=one_of(precision, "precision", ("fp32", "bf16")),
        compiled=compile,
        head_rows=head_rows,
        sampled_rows=sampled_rows,
        scale_features=scale_features,
        seed=seed,
        evaluate_every=evaluate_every,
        save_every=save_every,
        tree_nodes=tree_nodes,
    )
    if time_budget is not None:
        options = replace(options, steps=_budgeted(time_budget, objective, dataset, options, out))
    facts = {"target": dataset.manifest.plan.target, "drafter": drafter.config.to_dict()}
    trainer = Trainer(objective, dataset, options, out, watched, facts, console)
    console.print(
        f"{num_parameters(drafter):,} parameters, {len(dataset)} samples, {options.steps} steps, "
        f"{trainer.rows.label_share:.2%} of the labels inside the trained head rows"
    )
    trainer.run(resume)


def evaluate_command(
    drafter: Annotated[Path, typer.Option(help="checkpoint folder")],
    target: TargetPath,
    prompts: Annotated[Path, typer.Option(help="JSONL of prompts, as for capture")],
    out: Annotated[Path | None, typer.Option("--json", help="write the results here")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=2)] = 128,
    tree_nodes: Annotated[int, typer.Option(min=2, help="root included")] = 16,
    temperature: Annotated[float, typer.Option(min=0.01)] = 1.0,
    limit: Annotated[int | None, typer.Option(help="first prompts only")] = None,
    batch_size: Annotated[int, typer.Option(min=1)] = 64,
    noise_doubt: Annotated[
        float | None, typer.Option(min=0.01, max=100, help="default: learned for each prompt")
    ] = None,
    whole_vocabulary: Annotated[
        bool, typer.Option(help="make drafts of all tokens, whatever the checkpoint lists")
    ] = False,
    seed: int = 0,
    dtype: Dtype = "float32",
) -> None:
    """Measure accept length by speculative decoding: greedy, shared noise, rejection sampling."""
    precision = DTYPES[one_of(dtype, "dtype", tuple(DTYPES))]
    library.serve("cpu")
    model = load_drafter(drafter, dtype=precision)
    tokenizer = load_tokenizer(target)
    tapped = Target.from_pretrained(str(target), model.config.target_layer_ids, dtype=precision)
    tokens = None if whole_vocabulary else listed_beside(drafter, model.config.vocab_size)
    objective = DraftObjective(
        model,
        tapped.embedding_weight,
        tapped.head_weight,
        tapped.head_bias,
        draft_vocabulary=None if tokens is None else torch.tensor(tokens),
    ).eval()
    asked = read_prompts(prompts, tokenizer, limit)
    measured = evaluate(
        tapped,
        objective,
        asked,
        stop_tokens(tapped, tokenizer),
        max_new_tokens,
        tree_nodes,
        temperature,
        seed,
        batch_size,
        noise_doubt,
    )
    print_table(measured, Console())
    if out is not None:
        report = {
            "prompts": len(asked),
            "max_new_tokens": max_new_tokens,
            "seed": seed,
            "dtype": dtype,
            "draft_vocabulary": None if tokens is None else len(tokens),
            "modes": as_json(measured),
        }
        write_text(out, json.dumps(report, indent=2) + "\n")


def _budgeted(
    minutes: float,
    objective: DraftObjective,
    dataset: CaptureDataset,
    options: TrainOptions,
    out: Path,
) -> int:
    """Steps of a run with a time budget: measured at its start, remembered when it is resumed."""
    if (out / STATE).exists():
        return stored_plan(out)["steps"]
    return steps_within(minutes, objective, dataset, options)


def objective_for(
    drafter: DFlash2Drafter,
    target: Path,
    selector_weight: float = 1.0,
    feature_scale: torch.Tensor | None = None,
) -> DraftObjective:
    """The drafter with the embedding and head of the target stored under `target`."""
    model = Target.from_pretrained(str(target))
    return DraftObjective(
        drafter,
        model.embedding_weight,
        model.head_weight,
        model.head_bias,
        selector_weight,
        feature_scale=feature_scale,
    )


def stop_tokens(target: Target, tokenizer: Any) -> list[int]:
    """Ids that end a response: the generation config's, else the tokenizer's."""
    named = target.model.generation_config.eos_token_id
    if named is None and tokenizer is not None:
        named = tokenizer.eos_token_id
    if named is None:
        return []
    return [named] if isinstance(named, int) else list(named)


def load_tokenizer(target: Path) -> Any:
    """The tokenizer in a model folder, or None where there is none."""
    from transformers import AutoTokenizer

    if not any((target / n).exists() for n in ("tokenizer.json", "tokenizer_config.json")):
        return None
    return AutoTokenizer.from_pretrained(target)


def target_config(target: Path) -> Any:
    """Text config of the model in `target`. Raises TargetError when there is no model."""
    from transformers import AutoConfig

    if not (target / "config.json").is_file():
        raise TargetError(f"{target} is no model folder: it has no config.json")
    return AutoConfig.from_pretrained(target).get_text_config()


def numbers(text: str, what: str, kind: type) -> list[Any]:
    """A comma-separated option as numbers. Raises DataError for anything else."""
    try:
        return [kind(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise DataError(f"{what} must be comma-separated numbers, got {text!r}") from error


def one_of(value: str, what: str, allowed: tuple[str, ...]) -> Any:
    """`value`, if it is allowed. Raises TrainingError with the list otherwise."""
    if value not in allowed:
        raise TrainingError(f"{what} must be one of {', '.join(allowed)}, got {value!r}")
    return value
