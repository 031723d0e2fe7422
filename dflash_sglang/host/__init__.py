"""What a CPU-only machine lacks to run stock SGLang: process bootstrap, operators, attention."""

from __future__ import annotations

import os

from dflash_sglang.host.bootstrap import CPU_ENGINE_VARIABLE

ATTENTION_BACKEND = "dflash2_cpu"
"""What SGLang's ``--attention-backend`` calls ours."""


def register() -> None:
    """Prepare SGLang for its CPU engine; does nothing in a process that runs another device."""
    if os.environ.get(CPU_ENGINE_VARIABLE) != "1":
        return
    from dflash_sglang.host import patches

    patches.register()
