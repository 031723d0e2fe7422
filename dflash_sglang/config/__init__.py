"""A drafter checkpoint's ``config.json``, parsed once, validated, frozen."""

from dflash_sglang.config.fields import ConfigError
from dflash_sglang.config.rope import RopeConfig
from dflash_sglang.config.schema import (
    FULL,
    SLIDING,
    ConvConfig,
    DFlash2Config,
    SelectorConfig,
    TokenLookup,
    default_target_layer_ids,
)

__all__ = [
    "FULL",
    "SLIDING",
    "ConfigError",
    "ConvConfig",
    "DFlash2Config",
    "RopeConfig",
    "SelectorConfig",
    "TokenLookup",
    "default_target_layer_ids",
]
