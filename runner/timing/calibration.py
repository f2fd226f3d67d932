"""What an instrument reads where nothing happens, so that it can be taken off.

Once per process and form; or handed over by an earlier process of the same run, from which it differs by 2 ns.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import TypeVar

import torch

from runner.device.identity import cache_file, identity, read_record, write_record
from runner.timing import cupti
from runner.timing.gpu_kernels import null, spin
from runner.timing.preparation import preparation
from runner.timing.procedure import MOST_DRIFT_US
from runner.timing.statistics import trimmed_mean
from runner.timing.timestamps import GraphTimestamps, StreamTimestamps

SAMPLES = 2000  # 0.1 s; of 400, the mean was off by 6 ns from one process to the next
WARMUP = 100
CUPTI_CALLS = 400  # calls of a null kernel that CUPTI is asked about, so many
OFTEN = 5  # times, once a machine
FORMAT = 1  # of the file that keeps what it said
COOLING_S = 0.2  # after a spell at the power limit, whose clock would else be taken for the unloaded one
SPIN_CYCLES = 20_000  # about 10 us in which nothing but one warp runs: no power limit acts


_known: dict[str, float] = {}


def known() -> Mapping[str, float]:
    """What has been found out so far, by name."""
    return _known


def recall(found: Mapping[str, float]) -> None:
    """What another process has just found out on this GPU need not be found out again."""
    _known.update(found)


def graph_constant_us(*, cold_l2: bool, captures: int) -> float:
    """Subtracted from each sample of ``GraphTimestamps``: a null kernel then reads what CUPTI gives it."""
    return _once(
        f"graphs_{captures}_{_l2(cold_l2)}_us",
        lambda: _constant_us(null_graphs(cold_l2=cold_l2, captures=captures)),
    )


def null_graphs(*, cold_l2: bool, captures: int) -> GraphTimestamps:
    """Return graphs of an empty call, with nothing subtracted."""
    return GraphTimestamps(launch_empty, preparation(None, cold_l2=cold_l2), captures=captures, constant_us=0.0)


def stream_constant_us(*, cold_l2: bool) -> float:
    """The same for ``StreamTimestamps``."""
    before = preparation(None, cold_l2=cold_l2)
    return _once(
        f"stream_{_l2(cold_l2)}_us",
        lambda: _constant_us(StreamTimestamps(launch_empty, before, constant_us=0.0)),
    )


def empty_kernel_us() -> float:
    """What CUPTI gives a kernel that does nothing, its code as cold as that of any other; 0 if it cannot be asked.

    Asked once a machine, and kept: it is the zero of all times, and asked anew it would differ by some nanoseconds.
    """
    return _once("empty_kernel_us", _empty_kernel_us)


def _empty_kernel_us() -> float:
    facts = identity()
    path = cache_file("null", facts, FORMAT)
    kept = (read_record(path) or {}).get("empty_kernel_us")
    if isinstance(kept, float):
        return kept
    seen = [cupti.observe(launch_empty, preparation(None, cold_l2=True), calls=CUPTI_CALLS) for _ in range(OFTEN)]
    spans = [one.span_us for one in seen if one]
    if not spans:
        return 0.0
    write_record(path, {"identity": facts, "empty_kernel_us": statistics.median(spans)})
    return statistics.median(spans)


def unloaded_mhz(*, rested: bool = False) -> float:
    """Clock of the multiprocessors at next to no load: what a power limit is told by.

    ``rested``: this process has put no load on the GPU yet, so there is nothing to wait for.
    """
    return _once("unloaded_mhz", lambda: _unloaded_mhz(0.0 if rested else COOLING_S))


def _unloaded_mhz(rest_s: float = COOLING_S) -> float:
    torch.cuda.synchronize()
    time.sleep(rest_s)
    spinning = GraphTimestamps(_launch_spin, preparation(None, cold_l2=False), captures=1, constant_us=0.0)
    spinning.samples(20)
    return statistics.median(spinning.clocks_mhz)


def launch_empty() -> None:
    """A call that does nothing."""
    null[(1,)](num_warps=1)


def _launch_spin() -> None:
    spin[(1,)](SPIN_CYCLES, num_warps=1)


def _constant_us(instrument: GraphTimestamps | StreamTimestamps) -> float:
    instrument.samples(WARMUP)
    return trimmed_mean(instrument.samples(SAMPLES)) - empty_kernel_us()


def _once(name: str, find: Callable[[], float]) -> float:
    if name not in _known:
        _known[name] = find()
    return _known[name]


def _l2(cold: bool) -> str:
    return "cold" if cold else "warm"


CAPTURES = 20  # as by default: what they read has then been found out already
OFFSET_SAMPLES = 20  # half a millisecond, after each series
TRIES = 3
MOST = 8  # times CAPTURES that are made to settle it; some tens were enough where it was seen

Result = TypeVar("Result")


def undisturbed(take: Callable[[], Result]) -> tuple[Result, float]:
    """What ``take`` gives, and by how many microseconds the zero has moved; taken anew while it is found to have."""
    for _ in range(TRIES - 1):
        taken, moved_us = take(), shift_us()
        if moved_us > -MOST_DRIFT_US:
            return taken, moved_us
        settle()
    return take(), shift_us()


def shift_us() -> float:
    """By how much a kernel that does nothing reads more than when the timestamps were calibrated."""
    then_us = graph_constant_us(cold_l2=False, captures=CAPTURES) + empty_kernel_us()
    return trimmed_mean(_null().samples(OFFSET_SAMPLES)) - then_us


def settle() -> None:
    """Captures, until the driver has had to get memory for them: launches are then as they were."""
    held: list[GraphTimestamps] = []
    while shift_us() <= -MOST_DRIFT_US and len(held) < MOST:
        held.append(_graphs())
        held[-1].samples(CAPTURES)


@cache
def _null() -> GraphTimestamps:
    return _graphs()


def _graphs() -> GraphTimestamps:
    return null_graphs(cold_l2=False, captures=CAPTURES)
