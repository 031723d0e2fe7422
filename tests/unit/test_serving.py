"""``dflash2 serve`` fills in the algorithm and leaves every other flag to SGLang."""

import pytest

from dflash_sglang.serving import complete_arguments


def test_the_algorithm_is_added_where_it_is_missing():
    assert complete_arguments(["--model-path", "m"])[-2:] == ["--speculative-algorithm", "dflash2"]


@pytest.mark.parametrize(
    "flag", [["--speculative-algorithm", "DFlash2"], ["--speculative-algorithm=dflash2"]]
)
def test_the_algorithm_stays_as_it_was_given(flag):
    assert complete_arguments(flag) == flag


def test_another_algorithm_is_refused_by_name():
    with pytest.raises(ValueError, match="got 'EAGLE'"):
        complete_arguments(["--speculative-algorithm", "EAGLE"])
