"""Lattice of candidates -> draft tree -> layout for verification. Pure tensors, any device."""

from dflash_sglang.tree.build import DraftTree, build_tree
from dflash_sglang.tree.lattice import Lattice, LatticeError, build_lattice
from dflash_sglang.tree.layout import TreeLayout, make_layout
from dflash_sglang.tree.noisy import (
    NoisyCandidates,
    NoisyEdges,
    build_noisy_lattice,
    doubt_evidence,
    noisy_candidates,
    noisy_edges,
)
from dflash_sglang.tree.truncation import NO_TOP_K, Truncation

__all__ = [
    "NO_TOP_K",
    "DraftTree",
    "Lattice",
    "LatticeError",
    "NoisyCandidates",
    "NoisyEdges",
    "TreeLayout",
    "Truncation",
    "build_lattice",
    "build_noisy_lattice",
    "build_tree",
    "doubt_evidence",
    "make_layout",
    "noisy_candidates",
    "noisy_edges",
]
