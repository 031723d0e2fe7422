"""The Python face of ``csrc``: one function an operation, its PyTorch reference beside it."""
