"""Times of a warm call on a GPU as its caller sees them, by the host's clock: one call alone, and many back to back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch.cuda import synchronize

from runner.experiment.case import Scalar
from runner.timing import Call
from runner.timing import clock as time
from runner.timing.statistics import FEWEST, summarise

LOOP_SHARE, LOOP_S = 1 / 15, 0.04  # of ``max_s`` for each of the two loops, and at most; longer for five results
CALLS, LONGEST = 70, 5  # the first loop goes on until it has so many calls, or for so many times its length
MOST_IN_A_ROW, IN_A_ROW = 100, 1 / 5  # calls back to back: 100, or as many as fit into a fifth of a loop
WARMUP = 20  # results that are dropped, or a tenth: the first ones, since clocks and caches are not warm yet

Result = TypeVar("Result")


def latency_columns(call: Call, max_s: float) -> dict[str, Scalar]:
    """Return ``latency_us``, ``host_us`` and ``pipelined_us`` of ``call``, and half of each 95 % interval in percent.

    Inputs that the call changes are restored outside of the times, and not between calls back to back. A call that
    does not fit twice into a fifth of a loop is not repeated for ``pipelined_us``: it is ``latency_us`` then.

    ``max_s``: seconds that the samples of ``gpu_us`` may take; each of the two loops takes a fifteenth of them.
    """
    loop_s = min(LOOP_S, LOOP_SHARE * max_s)

    def restore() -> None:
        if call.reset is not None:
            call.reset()
            synchronize()

    def alone() -> tuple[float, float]:
        restore()
        started = time.perf_counter()
        call.run()
        returned = time.perf_counter()
        synchronize()
        return time.perf_counter() - started, returned - started

    def in_a_row() -> float:
        restore()
        started = time.perf_counter()
        for _ in range(count):
            call.run()
        synchronize()
        return (time.perf_counter() - started) / count

    latency_s, host_s = map(list, zip(*_repeat(alone, loop_s, CALLS), strict=True))
    count = min(MOST_IN_A_ROW, int(IN_A_ROW * loop_s / summarise(latency_s).estimate))
    pipelined_s = _repeat(in_a_row, loop_s) if count > 1 else latency_s
    columns: dict[str, Scalar] = {}
    for name, seconds in (("latency", latency_s), ("host", host_s), ("pipelined", pipelined_s)):
        summary = summarise(seconds)
        columns |= {f"{name}_us": 1e6 * summary.estimate, f"{name}_pct": 100 * summary.half_width}
    return columns


def _repeat(step: Callable[[], Result], loop_s: float, wanted: int = FEWEST) -> list[Result]:
    """Call ``step`` for ``loop_s`` seconds, up to five times as long for ``wanted`` results, and at least five times.

    Return its results without those of the warm-up.
    """
    results: list[Result] = []
    started = time.perf_counter()
    while len(results) < FEWEST or time.perf_counter() - started < loop_s * (1 if len(results) >= wanted else LONGEST):
        results.append(step())
    count = len(results)
    return results[min(max(WARMUP, count // 10), count // 4, count - FEWEST) :]
