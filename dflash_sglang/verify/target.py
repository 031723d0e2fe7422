"""The target's token after each node of the draft tree: argmax, or a draw with shared noise."""

from __future__ import annotations

from torch import Tensor

from dflash_sglang.kernels.draw import draw_tokens, draw_with_noise, greedy_tokens
from dflash_sglang.kernels.noise import NoiseKeys
from dflash_sglang.kernels.truncation import Truncation

__all__ = ["draw_with_noise", "greedy_tokens", "sampled_tokens"]


def sampled_tokens(
    logits: Tensor,
    temperatures: Tensor,
    noise: NoiseKeys,
    depths: Tensor,
    truncation: Truncation | None = None,
    *,
    noise_by_rank: bool = False,
) -> Tensor:
    """One draw after every node; nodes of one depth share the noise, since they share a position.

    The walk visits one node a position, and which one depends on noise of earlier positions only:
    what it emits has the target's law whatever tree was proposed, and equals what plain decoding
    with the same noise emits.

    A draw is the argmax of log softmax(logits / temperature) + noise, number for number the draw of
    SGLang's seeded sampler (0.5.23, PyTorch backend). Top-k and top-p drop ranks from top_k on, and
    ranks before which more than top_p has accumulated. What is left of a truncated law can be
    drawn from in two ways, both of which follow it:

    - Noise by token, as without truncation. A drafter that knows the noise finds the same token
      wherever its law is near the target's.
    - Noise by rank, as SGLang does: for every request of a batch in which any request truncates
      (greedy ones count, as top_k = 1); here a request's own parameters decide. Two tokens that
      change places between draft and target exchange their noise, so little of the coupling is
      left, and the noise-free lattice serves these requests as well.

    SGLang refuses min-p together with a seed.

    Args:
        logits: ``[bs, N, V]`` adjusted logits (penalties, bias, grammar), float32.
        temperatures: ``[bs]`` float32, 0 for greedy.
        noise: keys of the requests' noise, positions ``[bs, P]`` by depth (the anchor's position
            + 0, 1, ...), P greater than the deepest node.
        depths: ``[bs, N]`` int64 depths of the nodes.
        truncation: top-k and top-p of every request.
        noise_by_rank: the way in which truncated laws are drawn from.

    Returns:
        ``[bs, N]`` int64 tokens.
    """
    positions = noise.positions.gather(1, depths)  # [bs, N]
    return draw_tokens(
        logits, temperatures, noise.seeds, positions, truncation, noise_by_rank=noise_by_rank
    )
