"""Entry point of group ``sglang.srt.plugins``: SGLang calls :func:`register` in every process."""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)


def register() -> None:
    """Register the algorithm ``dflash2``, its server flags and what a CPU-only host needs.

    On a SGLang whose names differ nothing is registered and one log line says which name differs.
    """
    from dflash_sglang.engine import compat

    mismatches = compat.find_mismatches()
    if mismatches:
        logger.warning(compat.describe_mismatches(mismatches))
        return

    from dflash_sglang import algorithm, host
    from dflash_sglang.engine import (
        bursts,
        capture,
        finishing,
        flags,
        graphs,
        request_fields,
        requests,
    )

    host.register()
    bursts.register()
    flags.register()
    capture.register()
    graphs.register()
    requests.register()
    request_fields.register()
    finishing.register()
    algorithm.register()
