"""Verification of a draft tree: the target's tokens, the walk along them. Pure tensors."""

from dflash_sglang.verify.target import greedy_tokens
from dflash_sglang.verify.walk import Verdict, walk

__all__ = ["Verdict", "greedy_tokens", "walk"]
