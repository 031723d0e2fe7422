"""CUDA graphs of a tree's verify forward: captured with room for an attention mask.

SGLang captures DFLASH's verify forward without one, because a chain needs none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dflash_sglang.algorithm import NAME

_POLICY = "sglang.srt.speculative.dflash_utils.resolve_dflash_verify_mask_policy"


def register() -> None:
    """Ask for the mask where this server verifies trees."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(_POLICY, _mask_policy, HookType.AROUND)


def _mask_policy(
    original: Callable[[Any], tuple[str, bool]], attn_backend: Any
) -> tuple[str, bool]:
    from sglang.srt.runtime_context import get_spec

    backend, builds_mask = original(attn_backend)
    spec = get_spec()
    verifies_trees = spec.speculative_algorithm == NAME and spec.speculative_eagle_topk > 1
    return backend, builds_mask or verifies_trees
