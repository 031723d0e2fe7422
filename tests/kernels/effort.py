"""How many random cases a property is tried on; fewer where every case is slow."""

from __future__ import annotations

import os

from hypothesis import settings

# 1 / this many of the cases, at least 5: launch/test_sanitized.sh sets it.
SHARE_VARIABLE = "DFLASH2_TEST_SHARE"


def cases(count: int) -> settings:
    """Hypothesis settings for so many cases without a deadline."""
    share = int(os.environ.get(SHARE_VARIABLE, "1"))
    return settings(deadline=None, max_examples=max(5, count // share))
