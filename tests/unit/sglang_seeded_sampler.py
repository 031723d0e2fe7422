"""Draws with SGLang's own seeded sampler, run by test_verify_target.py in a process of its own.

Its hash is a Triton kernel; Triton's interpreter runs it without a GPU, but has to be asked for
before the first import. Usage: sglang_seeded_sampler.py IN.safetensors OUT.safetensors
"""

import os
import sys

os.environ["TRITON_INTERPRET"] = "1"
os.environ["TORCHDYNAMO_DISABLE"] = "1"

import torch
from safetensors.torch import load_file, save_file
from sglang.kernels.ops.sampling import murmur_hash
from sglang.srt.layers import sampler


def interpreted_hash(seed, positions, columns):
    """What murmur_hash32 launches on a GPU."""
    n, m = seed.shape[0], columns.shape[0]
    hashed = torch.empty((n, m), dtype=torch.uint32)
    grid = (n, (m + 1023) // 1024)
    murmur_hash.murmur_hash32_kernel[grid](seed, positions, columns, hashed, n, m, BLOCK_SIZE=1024)
    return hashed


def main(source: str, destination: str) -> None:
    rows = load_file(source)  # one row a draw
    sampler.murmur_hash32 = interpreted_hash
    seeds, positions = rows["seeds"], rows["positions"]
    columns = torch.arange(rows["logits"].shape[-1])
    hashed = interpreted_hash(seeds.to(torch.uint64), positions, columns)
    probs = torch.softmax(rows["logits"] / rows["temperatures"].unsqueeze(1), dim=-1)
    plain = sampler.sampling_from_probs_torch(probs.clone(), seeds, positions)
    truncated = sampler.top_k_top_p_min_p_sampling_from_probs_torch(
        probs,
        rows["top_ks"],
        rows["top_ps"],
        torch.zeros_like(rows["top_ps"]),
        need_min_p_sampling=False,
        sampling_seed=seeds,
        positions=positions,
    )
    save_file(
        {
            "hashed": hashed.to(torch.int64),
            "plain": plain.to(torch.int64),
            "truncated": truncated.to(torch.int64),
        },
        destination,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
