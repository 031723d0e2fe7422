"""Trains a DFlash 2 drafter with the model and losses of speculators 0.9.0 on our captured text.

Its own trainer wants an accelerator, its model and losses do not: this is their plainest loop, and
the result is written in the layout that `dflash2 evaluate` and the server read.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from speculators.models.dflash2.core import DFlash2DraftModel
from transformers import AutoTokenizer
from transformers.models.qwen3.modeling_qwen3 import Qwen3Config

from dflash_sglang.config import DFlash2Config
from dflash_sglang.drafter import DFlash2Drafter
from dflash_sglang.drafter.checkpoint import save_drafter
from dflash_sglang.train.data import CaptureDataset, Sample
from dflash_sglang.train.defaults import choose_mask_token, make_config
from dflash_sglang.train.schedule import learning_rate
from dflash_sglang.train.target import Target


def main() -> None:
    asked = arguments()
    torch.manual_seed(asked.seed)
    dataset = CaptureDataset(asked.data, block_size=8)
    target = last_layer_of(asked.target)
    ours = our_config(target, asked)
    model = their_model(asked.target, ours)
    optimizer = torch.optim.AdamW(
        (p for p in model.parameters() if p.requires_grad), weight_decay=0.01, betas=(0.9, 0.95)
    )
    loss_arguments, _ = DFlash2DraftModel.get_trainer_kwargs(
        loss_fn="kl_div",
        loss_implementation="eager",
        max_anchors=asked.sequences * asked.anchors,
    )
    generator = torch.Generator().manual_seed(asked.seed)
    for step in track(range(asked.steps), "train"):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, asked.learning_rate, 100, asked.steps)
        chosen = torch.randint(len(dataset), (asked.sequences,), generator=generator)
        samples = [dataset[i] for i in chosen.tolist()]
        _, loss, _ = model(**packed(samples, target), **loss_arguments)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % 50 == 0:
            print(f"step {step + 1} loss {loss.item():.3f}", flush=True)
        if (step + 1) % asked.save_every == 0:
            write(model, ours, asked.out.with_name(f"step-{step + 1:06d}"))
    write(model, ours, asked.out)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    for folder in ("--target", "--data", "--out"):
        parser.add_argument(folder, type=Path, required=True)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--anchors", type=int, default=32, help="blocks a sequence")
    parser.add_argument("--learning-rate", type=float, default=0.002)
    parser.add_argument("--save-every", type=int, default=100, help="steps")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def last_layer_of(path: Path) -> Target:
    """The target with its last decoder layer tapped: the labels' logits are made from it."""
    depth = Target.from_pretrained(str(path)).num_layers
    return Target.from_pretrained(str(path), (depth - 1,))


def our_config(target: Target, asked: argparse.Namespace) -> DFlash2Config:
    mask = choose_mask_token(
        AutoTokenizer.from_pretrained(asked.target), target.config.get_text_config().vocab_size
    )
    return make_config(target.model.config, mask, num_layers=asked.layers)


def their_model(target: Path, ours: DFlash2Config) -> DFlash2DraftModel:
    """Their drafter in the sizes of ours; both start from random weights."""
    assert ours.conv is not None and ours.selector is not None
    layer = Qwen3Config(
        hidden_size=ours.hidden_size,
        num_hidden_layers=ours.num_hidden_layers,
        num_attention_heads=ours.num_attention_heads,
        num_key_value_heads=ours.num_key_value_heads,
        head_dim=ours.head_dim,
        intermediate_size=ours.intermediate_size,
        vocab_size=ours.vocab_size,
        rms_norm_eps=ours.rms_norm_eps,
        max_position_embeddings=ours.rope.max_positions,
        rope_parameters={"rope_type": "default", "rope_theta": ours.rope.theta},
        layer_types=list(ours.layer_types),
    )
    model = DFlash2DraftModel.from_training_args(
        layer,
        verifier_name_or_path=str(target),
        target_layer_ids=list(ours.target_layer_ids),
        draft_vocab_size=ours.vocab_size,
        block_size=ours.block_size,
        mask_token_id=ours.mask_token_id,
        draft_attn_impl="sdpa",
        conv_kernel_size=ours.conv.kernel_size,
        conv_group_size=ours.conv.group_size,
        selector_rank=ours.selector.rank,
        selector_top_k=ours.selector.top_k,
    )
    return model.float()


def packed(samples: Sequence[Sample], target: Target) -> dict[str, Any]:
    """Texts behind each other in one row, as their model reads them."""
    tokens = torch.cat([sample.tokens for sample in samples])
    last = torch.cat([target.read(s.tokens[None]).features[0] for s in samples])
    places = [torch.arange(len(sample.tokens)) for sample in samples]
    responses = [p >= s.response_start for p, s in zip(places, samples, strict=True)]
    documents = [torch.full_like(place, row) for row, place in enumerate(places)]
    return {
        "hidden_states": torch.cat([sample.features for sample in samples]).float()[None],
        "input_ids": tokens[None],
        "loss_mask": torch.cat(responses).long()[None],
        "verifier_last_hidden_states": last[None],
        "document_ids": torch.cat(documents)[None],
        "position_ids": torch.cat(places)[None],
    }


def write(model: DFlash2DraftModel, config: DFlash2Config, out: Path) -> None:
    """Their weights under the same names in our drafter; what is the target's stays behind."""
    drafter = DFlash2Drafter(config)
    theirs = model.state_dict()
    drafter.load_state_dict({name: theirs[name] for name in drafter.state_dict()})
    save_drafter(drafter.to(torch.bfloat16), out)


if __name__ == "__main__":
    main()
