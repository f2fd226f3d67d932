"""Parts that the self-tests of a CPU and of a GPU share: results, settings, pairs of calls, fresh processes."""

import math
import multiprocessing
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any

import torch

from ...device import identity
from .. import cpu
from ..call import Batches, Call
from ..statistics import Ratio, pair_floors, paired, shared_us, t_975
from ..timer import Timer
from ..verdict import CONTENDED_PCT

Process = Sequence[float]  # seconds since 1970, then the time in us of each call in a fresh process


@dataclass(frozen=True)
class Check:
    """One line of the table."""

    name: str
    found: str  # with units
    bar: str  # requirement
    passed: bool
    separate_pct: float | None = None  # from the check of separate times, for later runs
    processes: Sequence[Process] = ()  # that ``separate_pct`` is computed from, of this and earlier runs of ``verify``


class TooBusy(Exception):
    """Raised if other processes use this machine so much that a check is meaningless."""


@dataclass(frozen=True)
class Settings(Timer):
    """Settings whose times and comparisons raise TooBusy if other processes disturbed them."""

    def time(self, call: Call, device: str) -> dict[str, Any]:
        """Return the columns of ``call``."""
        columns = super().time(call, device)
        if columns["verdict"] == "contended":
            raise TooBusy
        return columns

    def compare(self, calls: Sequence[tuple[Call, Mapping[str, Any]]], device: str) -> list[Batches]:
        """Return the batch means of ``calls``, which must be short enough for paired rounds."""
        wait_pct = cpu.waiting()
        batches = super().compare(calls, device)
        if batches is None or (device == "cpu" and wait_pct() > CONTENDED_PCT):
            raise TooBusy
        return batches


SelfTest = Callable[[Settings], list[Check]]

SURE_US = 8.0  # shortest calls that must be called the same; below, the instrument's error is too large a share
SURE_SHARE = 0.9  # share of these pairs


@dataclass(frozen=True)
class ComparedTimes:
    """One pair of calls."""

    ratio: Ratio  # first over second
    us: float  # time of the second


def compared(
    settings: Settings, device: str, first: Call, second: Call, instrument: str = "perf_counter"
) -> ComparedTimes:
    """Compare two calls in paired rounds, both timed by ``instrument``."""
    both = settings.compare([(call, {"instrument": instrument}) for call in (first, second)], device)
    names = both[0].instrument, both[1].instrument
    ratio = paired(both[0].means_us, both[1].means_us, pair_floors(*names), shared_us(*names))
    return ComparedTimes(ratio, fmean(both[1].means_us))


def alike(name: str, pairs: Sequence[ComparedTimes], most: int) -> Check:
    """Check that at most ``most`` pairs of equal calls are called faster or slower."""
    different = sum(pair.ratio.word in ("faster", "slower") for pair in pairs)
    widest = 100 * max(abs(pair.ratio.log) for pair in pairs)
    text = f"{different} of {len(pairs)} called different, the largest difference {widest:.2f} %"
    return Check(f"{name}: different", text, f"at most {most}", different <= most)


def sure(name: str, pairs: Sequence[ComparedTimes]) -> Check:
    """Check that most pairs of equal and long enough calls are called the same."""
    long = [pair for pair in pairs if pair.us >= SURE_US]
    same = sum(pair.ratio.word == "same" for pair in long)
    text = f'{same} of the {len(long)} from {SURE_US:g} us up called "same"'
    return Check(f"{name}: same", text, f"at least {100 * SURE_SHARE:.0f} %", same >= SURE_SHARE * len(long))


def slower(name: str, pairs: Sequence[ComparedTimes], share: float, least: int) -> Check:
    """Check that at least ``least`` calls that are longer by ``share`` are called slower."""
    detected = sum(pair.ratio.word == "slower" for pair in pairs)
    read = 100 * fmean(pair.ratio.log for pair in pairs)
    text = f"found in {detected} of {len(pairs)}, measured as {read:+.2f} %"
    return Check(f"{name}, {100 * share:g} % longer", text, f"at least {least}", detected >= least)


PROCESSES, MOST_PROCESSES = 6, 30  # in a run of ``verify``; in this and earlier runs
PROCESS_S = 0.15  # for the samples of one call


def separate(name: str, new: Sequence[Process], most_pct: float, earlier: Sequence[Process] = ()) -> Check:
    """Check how much separate times of one call differ, in the processes of this run and of ``earlier`` runs."""
    processes = [*earlier, *new][-MOST_PROCESSES:]
    moments, *series = zip(*processes, strict=True)
    spread = max(stdev(map(math.log, times_us)) for times_us in series)
    percent = 100 * t_975(len(processes) - 1) * math.sqrt(2) * spread
    basis = f"{len(processes)} processes in {(max(moments) - min(moments)) / 60:.1f} min"
    text = f"two times of one call differ by up to {percent:.2f} % (95 %): {basis}"
    return Check(name, text, f"at most {most_pct:g} %", percent <= most_pct, percent, processes)


def earlier(device: str) -> Sequence[Process]:
    """Return the processes behind the certificate of this machine, whose times are as valid as new ones."""
    kept = (finding.get("processes") for finding in identity.certified(device))
    return next(filter(None, kept), ())


def in_processes(settings: Settings, device: str, counts: Sequence[int]) -> list[Process]:
    """Time GELU of ``counts`` elements in ``PROCESSES`` fresh processes, one after the other."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])  # imported once, not in each process
    quick = replace(settings, max_s=min(settings.max_s, PROCESS_S))
    with ProcessPoolExecutor(1, context, max_tasks_per_child=1) as pool:
        return [pool.submit(_in_this_process, quick, device, counts).result() for _ in range(PROCESSES)]


def _in_this_process(settings: Settings, device: str, counts: Sequence[int]) -> Process:
    warnings.simplefilter("ignore")  # the parent's filters do not apply here
    column = "wall_us" if device == "cpu" else "gpu_us"
    return [time.time(), *(float(settings.time(gelu(count, device), device)[column]) for count in counts)]


def gelu(count: int, device: str) -> Call:
    """Return GELU (tanh) of ``count`` float32 values into an existing buffer."""
    function: Any = torch._C._nn.gelu  # takes a buffer for its output, unlike torch.nn.functional.gelu
    x = torch.randn(count, device=device)
    y = torch.empty_like(x)
    return Call(lambda: (function(x, approximate="tanh", out=y),))
