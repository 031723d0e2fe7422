"""What is left of a step's room once its anchors are in the cache."""

import torch

from dflash_sglang.engine.window import StepWindow


def test_a_window_moves_on_by_a_token():
    slots = torch.arange(12).view(2, 6)
    window = StepWindow(torch.tensor([7, 8]), torch.tensor([20, 30]), slots, plan=None)
    assert window.columns(6) is None
    assert window.columns(1) == slice(0, 1)
    moved = window.behind(torch.tensor([5, 6])).behind(torch.tensor([3, 4]))
    assert moved.anchors.tolist() == [3, 4]
    assert moved.prefix_lens.tolist() == [22, 32]
    assert moved.slots.tolist() == [[2, 3, 4, 5], [8, 9, 10, 11]]
    assert moved.columns(1) == slice(2, 3)
    assert moved.columns(4) == slice(2, 6)
