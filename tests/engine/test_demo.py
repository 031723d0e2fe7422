"""The demo pair as it is shipped."""

import json

import pytest

from dflash_sglang.demo.run import PAIR, run

pytestmark = pytest.mark.server


def test_demo_gives_the_same_tokens_in_fewer_steps(tmp_path):
    report = tmp_path / "demo.json"
    assert run(PAIR / "target", PAIR / "drafter", max_tokens=48, report=report)
    figures = json.loads(report.read_text())
    assert figures["identical"] is True
    assert figures["baseline"]["tokens_per_s"] > 0 and figures["dflash2"]["tokens_per_s"] > 0
    # How many more tokens a step brings is left to adaptive width, which goes by the time of steps.
    assert figures["dflash2"]["accept_length"] > 1.5
