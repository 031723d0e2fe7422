"""Lattice of candidates -> draft tree -> layout for verification. Pure tensors, any device."""

from dflash_sglang.tree.build import DraftTree, build_tree
from dflash_sglang.tree.lattice import Lattice, LatticeError, build_lattice
from dflash_sglang.tree.layout import TreeLayout, make_layout
from dflash_sglang.tree.noisy import (
    NoisyCandidates,
    build_noisy_lattice,
    noisy_candidates,
    seeded_candidates,
)
from dflash_sglang.tree.truncation import NO_TOP_K, Truncation

__all__ = [
    "NO_TOP_K",
    "DraftTree",
    "Lattice",
    "LatticeError",
    "NoisyCandidates",
    "TreeLayout",
    "Truncation",
    "build_lattice",
    "build_noisy_lattice",
    "build_tree",
    "make_layout",
    "noisy_candidates",
    "seeded_candidates",
]
