"""The seeded token behind a prompt, whoever shares the prompt's batch.

SGLang's seeded sampler draws a whole batch from sorted probabilities as soon as one of its requests
is truncated or greedy, and then the noise belongs to ranks. So a request without top-k and top-p
gets another token beside such a request than alone. Steps of ours go by the request's own
parameters; here the token behind a prompt does as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dflash_sglang.engine.noise import truncation_of
from dflash_sglang.verify.noise import gumbel_noise

if TYPE_CHECKING:
    from sglang.srt.layers.logits_processor import LogitsProcessorOutput
    from sglang.srt.managers.schedule_batch import ScheduleBatch


@torch.inference_mode()
def draw_as_alone(
    batch: ScheduleBatch, output: LogitsProcessorOutput, tokens: torch.Tensor
) -> torch.Tensor:
    """The tokens that SGLang's sampler draws for each request in a batch of its own.

    Args:
        batch: a prefill's.
        output: what the sampler left of it: probabilities [bs, V] in the place of logits. The
            log-probability of a token that changes is corrected.
        tokens: [bs] what the sampler drew for the batch.
    """
    info = batch.sampling_info
    truncation = truncation_of(info)
    if info.sampling_seed is None or info.is_all_greedy or truncation is None:
        return tokens
    if batch.is_prefill_only:
        return tokens  # nobody asked for a token, so none was drawn
    probs = output.next_token_logits  # [bs, V]
    seeds = info.sampling_seed.to(torch.int64)
    positions = (batch.seq_lens - 1)[:, None]  # of the prompts' last tokens
    noise = gumbel_noise(seeds, positions, probs.shape[1])[:, 0]  # [bs, V]
    drawn = (probs.log().double() + noise).argmax(dim=-1).to(tokens.dtype)
    alone = torch.where(truncation.applies(), tokens, drawn)
    if output.next_token_logprobs is not None:
        corrected = probs.gather(1, alone[:, None].to(torch.int64)).log().squeeze(1)
        output.next_token_logprobs = torch.where(
            alone == tokens, output.next_token_logprobs, corrected
        )
    return alone
