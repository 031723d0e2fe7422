"""Verification of a draft tree: the target's tokens, the walk along them. Pure tensors."""

from dflash_sglang.verify.noise import gumbel_noise
from dflash_sglang.verify.target import greedy_tokens, sampled_tokens
from dflash_sglang.verify.walk import Verdict, walk

__all__ = ["Verdict", "greedy_tokens", "gumbel_noise", "sampled_tokens", "walk"]
