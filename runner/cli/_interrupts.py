"""SIGINT and SIGTERM during a run."""

import signal
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from typing import Any, Literal, Self


class Interrupts:
    """Turns SIGINT and SIGTERM into KeyboardInterrupt with the signal's number. Use it as a context manager.

    The first one raises it where an event is awaited. Elsewhere it is only noted: an event is handled and a report is
    written to its end. A second one raises it at once, but never while an event is handled.
    """

    def __init__(self) -> None:
        self.first = 0  # number of the first signal
        self._state: Literal["awaiting", "handling", ""] = ""
        self._pending = 0

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *failure: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def deliver(self, events: Generator[Any, None, None], handle: Callable[[Any], None]) -> None:
        """Call ``handle`` with each event. An interrupt meanwhile is thrown into ``events``, which may yield more."""
        if self.first:
            raise KeyboardInterrupt(self.first)
        resume: Callable[[], Any] = partial(next, events)
        try:
            with suppress(StopIteration):
                while True:
                    self._state = "awaiting"
                    event = resume()
                    self._state = "handling"
                    handle(event)
                    pending, self._pending = self._pending, 0
                    resume = partial(events.throw, KeyboardInterrupt(pending)) if pending else partial(next, events)
        finally:
            self._state = ""

    def _on_signal(self, number: int, frame: object) -> None:
        again, self.first = self.first, self.first or number
        if self._state == "awaiting" or (again and not self._state):
            raise KeyboardInterrupt(number)
        self._pending = number
