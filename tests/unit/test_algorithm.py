"""Server options that dflash2 cannot honour are named before anything is loaded."""

from types import SimpleNamespace

import pytest

from dflash_sglang.algorithm import DFlash2Algorithm
from dflash_sglang.options import OptionsError

SERVED = {
    "pp_size": 1,
    "enable_dp_attention": False,
    "speculative_draft_window_size": None,
    "grammar_backend": "xgrammar",
}


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"pp_size": 2}, "--pp-size 1, got 2"),
        ({"enable_dp_attention": True}, "--enable-dp-attention"),
        ({"speculative_draft_window_size": 64}, "--speculative-draft-window-size"),
        ({"grammar_backend": "outlines"}, "xgrammar or llguidance, got outlines"),
    ],
    ids=["pipeline", "data-parallel-attention", "window", "grammar"],
)
def test_an_option_is_refused_by_its_flag(asked, sentence):
    with pytest.raises(OptionsError, match=sentence):
        DFlash2Algorithm.handle_server_args(None, SimpleNamespace(**{**SERVED, **asked}))
