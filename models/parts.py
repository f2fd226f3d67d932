"""Times of parts of a training step, each from its begin to that of the next part. Measurements import this late."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from typing import Any

import torch

from ..kernels.spans import watched
from ..timing import clock as time
from ..timing.call import Call
from ..timing.capture import captured


class PartTimer:
    """Times parts of a call by events of the current stream, or on a CPU by the host's clock.

    The events of a CUDA graph are part of it, so the call of one is captured once more, with events.
    """

    def __init__(self, call: Call, parts: tuple[str, ...], *, gpu: bool) -> None:
        self._call, self._parts, self._gpu, self._run = call, parts, gpu, call.run
        self._marks: list[tuple[str, Any]] = []  # begins of parts by their names, and the end of each step by ""
        self._events: list[torch.cuda.Event] = []  # made once: to make one takes longer than to record it
        if call.captured:
            with watched(self._part):
                self._run = captured(call.run, call.run)[0].replay

    def sample(self) -> dict[str, float]:
        """Return us of each part in a mean step, those of a step of a call without events, and the share of both.

        Without parts in the call, the result is empty.
        """
        whole_us = self._us(self._call.run)
        if not self._call.captured:
            self._marks.clear()
        with nullcontext() if self._call.captured else watched(self._part):
            self._us(self._run)
        times = {f"{name}_us": 0.0 for name, _ in self._marks if name}
        steps = len(self._marks) - sum(bool(name) for name, _ in self._marks)
        for (name, begin), (_, end) in pairwise(self._marks):
            if name:
                times[f"{name}_us"] += (1e3 * begin.elapsed_time(end) if self._gpu else 1e6 * (end - begin)) / steps
        return times and {
            **times,
            "step_us": whole_us / steps,
            "parts_pct": 100 * sum(times.values()) * steps / whole_us,
        }

    @contextmanager
    def _part(self, name: str) -> Iterator[None]:
        if name in self._parts:
            self._mark(name)
        yield
        if name.startswith("step_"):
            self._mark("")

    def _mark(self, name: str) -> None:
        if not self._gpu:
            self._marks.append((name, time.perf_counter()))
            return
        if len(self._marks) == len(self._events):
            external = {"external": True} if self._call.captured else {}  # older versions of torch lack the word
            self._events.append(torch.cuda.Event(enable_timing=True, **external))
        event = self._events[len(self._marks)]
        event.record()
        self._marks.append((name, event))

    def _us(self, run: Callable[[], object]) -> float:
        self._call.restore()
        self._wait()
        started = time.perf_counter()
        run()
        self._wait()
        return 1e6 * (time.perf_counter() - started)

    def _wait(self) -> None:
        if self._gpu:
            torch.cuda.synchronize()
