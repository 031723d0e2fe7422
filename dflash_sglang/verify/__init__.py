"""Verification of a draft tree: the target's tokens, the walk along them. Pure tensors."""

from dflash_sglang.verify.noise import NoiseKeys, gumbel_noise
from dflash_sglang.verify.target import draw_with_noise, greedy_tokens, sampled_tokens
from dflash_sglang.verify.walk import Verdict, walk

__all__ = [
    "NoiseKeys",
    "Verdict",
    "draw_with_noise",
    "greedy_tokens",
    "gumbel_noise",
    "sampled_tokens",
    "walk",
]
