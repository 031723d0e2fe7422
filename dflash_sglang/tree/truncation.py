"""Top-k, top-p and min-p: what the target's sampler drops and the drafter anticipates."""

from dflash_sglang.kernels.truncation import NO_TOP_K, Truncation, truncate_draft

__all__ = ["NO_TOP_K", "Truncation", "truncate_draft"]
