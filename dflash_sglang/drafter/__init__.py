"""The DFlash 2 drafter in plain PyTorch: one definition for training, reference and engine.

Those three exchange only the attention core (:class:`AttentionCore`). Sources: DFlash
(arXiv:2602.06036) for KV injection and the block; the published DFlash 2 checkpoints for the
dynamic convolution and the candidate selector.
"""

from dflash_sglang.drafter.attention import AttentionCore, ContextKV, DenseAttention, visible
from dflash_sglang.drafter.checkpoint import CheckpointError, load_drafter, save_drafter
from dflash_sglang.drafter.model import DFlash2Drafter
from dflash_sglang.drafter.selector import CandidateSelector

__all__ = [
    "AttentionCore",
    "CandidateSelector",
    "CheckpointError",
    "ContextKV",
    "DFlash2Drafter",
    "DenseAttention",
    "load_drafter",
    "save_drafter",
    "visible",
]
