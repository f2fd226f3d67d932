"""Times of parts of a training step, each from its begin to that of the next part. Measurements import this late."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import pairwise
from statistics import median
from typing import Any

import torch

from ..kernels.spans import watched
from ..timing import clock as time
from ..timing import ranks
from ..timing.call import Call
from ..timing.capture import captured
from ..timing.procedure import collector_paused


class PartTimer:
    """Times parts of a call by events of the current stream, or on a CPU by the host's clock.

    The events of a CUDA graph are part of it, so the call of one is captured once more, with events.
    """

    def __init__(self, call: Call, parts: tuple[str, ...], *, gpu: bool) -> None:
        self._call, self._parts, self._gpu, self._run = call, parts, gpu, call.run
        self._marks: list[tuple[str, Any]] = []  # begins of parts by their names, and the end of each step by ""
        self._events: list[torch.cuda.Event] = []  # made once: to make one takes longer than to record it
        self._stream: torch.cuda.Stream | None = None
        if call.captured:
            with watched(self._part):
                self._run = captured(call.run, call.run)[0].replay

    def figures(self, calls: int, least_s: float) -> dict[str, float]:
        """Return us of each part in a mean step, those of a step of a call without events, and the share of both.

        Calls without and with events take turns, after a first one of each, ``calls`` times and for ``least_s``
        seconds at least; the median counts. The share is one of neighbours, since a host that launches kernels may be
        slower a second later. Without parts in a step of the call, the result is empty.
        """
        self._us(self._call.run)
        if not self._divided():
            return {}
        steps_us: list[float] = []
        divided: list[dict[str, float]] = []
        ends = ranks.current.now() + least_s
        while len(divided) < calls or ranks.current.now() < ends:
            steps_us.append(self._us(self._call.run) / self._steps)
            divided.append(self._divided())
        shares = [100 * sum(parts.values()) / step_us for parts, step_us in zip(divided, steps_us, strict=True)]
        parts = sorted(divided, key=lambda times: sum(times.values()))[len(divided) // 2]
        return {**parts, "step_us": median(steps_us), "parts_pct": median(shares)}

    @property
    def _steps(self) -> int:
        """The steps of a call that is divided into parts."""
        return sum(not name for name, _ in self._marks)

    def _divided(self) -> dict[str, float]:
        """Return us of each part in a mean step of a call with events."""
        if not self._call.captured:
            self._marks.clear()
        with nullcontext() if self._call.captured else watched(self._part):
            self._us(self._run)
        if not (steps := self._steps):
            return {}
        times = {f"{name}_us": 0.0 for name, _ in self._marks if name}
        for (name, begin), (_, end) in pairwise(self._marks):
            if name:
                times[f"{name}_us"] += (1e3 * begin.elapsed_time(end) if self._gpu else 1e6 * (end - begin)) / steps
        return times

    def _part(self, name: str) -> AbstractContextManager[object]:
        if name.startswith("step_"):
            return self._step()
        if name in self._parts:
            self._mark(name)
        return nullcontext()

    @contextmanager
    def _step(self) -> Iterator[None]:
        if self._gpu:  # once a step: to ask for the stream takes longer than to record an event
            self._stream = torch.cuda.current_stream()
        yield
        self._mark("")

    def _mark(self, name: str) -> None:
        if not self._gpu:
            self._marks.append((name, time.perf_counter()))
            return
        if len(self._marks) == len(self._events):
            external = {"external": True} if self._call.captured else {}  # older versions of torch lack the word
            self._events.append(torch.cuda.Event(enable_timing=True, **external))
        event = self._events[len(self._marks)]
        event.record(self._stream)
        self._marks.append((name, event))

    def _us(self, run: Callable[[], object]) -> float:
        self._call.restore()
        self._wait()
        ranks.current.meet()
        with collector_paused():
            started = time.perf_counter()
            run()
            self._wait()
            return 1e6 * (time.perf_counter() - started)

    def _wait(self) -> None:
        if self._gpu:
            torch.cuda.synchronize()
