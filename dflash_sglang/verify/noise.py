"""Shared noise: Gumbel noise that is a function of request seed, position and column alone.

Draft and target add the same noise to their log-probabilities at a position. The target's draw,
the argmax of the sum, follows the target's law; where the drafter's law is close, the same token
wins there too. Bit for bit the noise of SGLang's seeded sampler (0.5.23,
``sampler.multinomial_with_seed``), so that a seed gives the same tokens with and without
speculation. Theory: Gumbel coupling without communication (arXiv 2408.07978).
"""

from dflash_sglang.kernels.noise import NoiseKeys, gumbel_noise, hash_columns

__all__ = ["NoiseKeys", "gumbel_noise", "hash_columns"]
