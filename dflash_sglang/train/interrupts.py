"""Ctrl-C and SIGTERM as a wish to stop between two steps: what is saved is a whole step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stop_request() -> Iterator[threading.Event]:
    """An event that is set by the first SIGINT or SIGTERM; a second one acts as usual.

    Outside the main thread, where Python takes no signal handlers, the event is never set.
    """
    requested = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield requested
        return
    usual = {number: signal.getsignal(number) for number in _SIGNALS}

    def restore() -> None:
        for number, handler in usual.items():
            signal.signal(number, handler)

    def request(_number, _frame) -> None:
        requested.set()
        restore()

    for number in _SIGNALS:
        signal.signal(number, request)
    try:
        yield requested
    finally:
        restore()
