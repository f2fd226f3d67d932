"""Host times of a warm call on a GPU: of a single call, and of calls back to back."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from torch import Tensor
from torch.cuda import synchronize

from ..records.case import Scalar
from . import clock as time
from . import ranks
from .call import Call
from .nested import returned_tensors
from .spot_checks import SpotChecks
from .statistics import FEWEST, summarise

LOOP_SHARE, LOOP_S = 1 / 15, 0.04  # length of each of the two loops: share of ``max_s``, and limit
CALLS, LONGEST = 70, 5  # the first loop may take 5 times as long until it has 70 calls
MOST_IN_A_ROW, IN_A_ROW = 100, 1 / 5  # calls back to back: 100, or as many as fit into a fifth of a loop
WARMUP = 20  # first results, or a tenth of all, that are dropped, since clocks and caches are not warm

Result = TypeVar("Result")


def latency_columns(call: Call, max_s: float) -> dict[str, Scalar]:
    """Return ``latency_us``, ``host_us`` and ``pipelined_us`` of ``call``, and half-widths of their 95 % intervals.

    Inputs that the call changes are restored before each timed part, and not between calls back to back. For a call
    that does not fit twice into a fifth of a loop, ``pipelined_us`` is ``latency_us``.

    ``max_s``: limit in seconds for the samples of ``gpu_us``, of which each loop takes a fifteenth.
    """
    loop_s = min(LOOP_S, LOOP_SHARE * max_s)

    def restore() -> None:
        if ranks.current.count > 1:  # they slept while they waited for each other, and the next call is slower
            call.run()
            synchronize()
        if call.reset is not None:
            call.reset()
            synchronize()
        ranks.current.meet()

    def alone() -> list[float]:
        restore()
        started = time.perf_counter()
        call.run()
        returned = time.perf_counter()
        synchronize()
        return ranks.current.slowest([time.perf_counter() - started, returned - started])

    def in_a_row() -> float:
        restore()
        started = time.perf_counter()
        for _ in range(count):
            call.run()
        synchronize()
        return ranks.current.slowest([(time.perf_counter() - started) / count])[0]

    latency_s, host_s = map(list, zip(*_repeat(alone, loop_s, CALLS), strict=True))
    count = min(MOST_IN_A_ROW, int(IN_A_ROW * loop_s / summarise(latency_s).estimate))
    pipelined_s = _repeat(in_a_row, loop_s) if count > 1 else latency_s
    columns: dict[str, Scalar] = {}
    for name, seconds in (("latency", latency_s), ("host", host_s), ("pipelined", pipelined_s)):
        summary = summarise(seconds)
        columns |= {f"{name}_us": 1e6 * summary.estimate, f"{name}_pct": 100 * summary.half_width}
    return columns


def judge_in_a_row(call: Call, checks: SpotChecks) -> None:
    """Judge the last outputs of calls back to back, as many as ``pipelined_us`` is the time of at most."""

    def last() -> Sequence[Tensor]:
        call.restore()
        for _ in range(1 if call.reset else MOST_IN_A_ROW):  # the next call would not find the same inputs
            outputs = call.run()
        synchronize()
        return returned_tensors(outputs)

    checks.judge(last)


def _repeat(step: Callable[[], Result], loop_s: float, target: int = FEWEST) -> list[Result]:
    """Call ``step`` for ``loop_s`` seconds, up to five times as long for ``target`` results, and at least five times.

    Return its results without the warm-up.
    """
    results: list[Result] = []

    started = ranks.current.now()
    while len(results) < FEWEST or ranks.current.now() - started < loop_s * (1 if len(results) >= target else LONGEST):
        results.append(step())
    count = len(results)
    return results[min(max(WARMUP, count // 10), count // 4, count - FEWEST) :]
