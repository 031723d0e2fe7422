"""The noise of one decode step: every request's own, the same for draft and target."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

import torch

from dflash_sglang.tree.truncation import Truncation
from dflash_sglang.verify.noise import NoiseKeys

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo


class StepNoise(NamedTuple):
    """What the sampled requests of a batch are drawn with in one step."""

    keys: NoiseKeys  # positions [bs, depth + 1], by depth behind the anchor
    temperatures: torch.Tensor  # [bs] float32, 0 for greedy
    truncation: Truncation | None  # top-k and top-p; None where no request truncates
    by_rank: bool  # truncated laws are drawn as SGLang's seeded sampler draws them

    def is_coupled(self) -> torch.Tensor:
        """[bs] bool, requests whose noise belongs to token ids, so that a drafter can use it."""
        sampled = self.temperatures > 0
        if self.by_rank and self.truncation is not None:
            return sampled & ~self.truncation.applies()
        return sampled


def step_noise(
    batch: ScheduleBatch, prefix_lens: torch.Tensor, depth: int, server_seed: int
) -> StepNoise | None:
    """Noise for the positions that a step can reach; None if SGLang's own sampler has to draw.

    That is so where every request is greedy, and with min-p, which SGLang's seeded sampler does not
    know.

    Args:
        prefix_lens: [bs] int64, the anchors' positions.
        depth: greatest depth of a draft.
        server_seed: SGLang's random seed, the same on every rank.
    """
    info = batch.sampling_info
    if info.is_all_greedy or info.need_min_p_sampling:
        return None
    seeds = info.sampling_seed
    if seeds is None:
        seeds = _own_seeds(batch, server_seed)
    positions = prefix_lens[:, None] + torch.arange(depth + 1, device=prefix_lens.device)
    # SGLang writes a greedy request as temperature 1 and top-k 1.
    greedy = info.top_ks == 1
    return StepNoise(
        keys=NoiseKeys(seeds.to(torch.int64), positions),
        temperatures=info.temperatures.view(-1).masked_fill(greedy, 0.0),
        truncation=truncation_of(info),
        by_rank=info.sampling_seed is not None,
    )


def truncation_of(info: SamplingBatchInfo) -> Truncation | None:
    """Top-k and top-p of a batch; None where no request has either (greedy ones have top-k 1)."""
    if not (info.need_top_k_sampling or info.need_top_p_sampling):
        return None
    return Truncation(info.top_ks.to(torch.int64), info.top_ps)


def _own_seeds(batch: ScheduleBatch, server_seed: int) -> torch.Tensor:
    """One seed a request, for servers on which SGLang keeps none.

    A function of the request's id and the server's random seed: requests never share a stream, two
    runs of a server differ unless --random-seed tells otherwise, and all ranks agree.
    """
    seeds = [_seed(request.rid, server_seed) for request in batch.reqs]
    return torch.tensor(seeds, dtype=torch.int64).to(batch.seq_lens.device, non_blocking=True)


@lru_cache(maxsize=4096)
def _seed(request_id: str, server_seed: int) -> int:
    digest = blake2b(f"{server_seed}/{request_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
