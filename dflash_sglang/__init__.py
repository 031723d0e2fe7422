"""DFlash 2 speculative decoding for stock SGLang."""

__version__ = "0.1.0"
