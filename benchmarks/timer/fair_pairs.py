"""Test whether comparisons call two implementations different if, and only if, they differ.

    python -m benchmarks.timer.fair_pairs [--pairs 40] [--longer 34] [--peers 6] [--write]

A pair of equal calls is the same call twice, on the same buffers. Each pair has new buffers, and allocations between
pairs move them to other addresses. The other pairs are a spin and a longer spin. Ours samples both sides in turn and
gives a verdict. The peers give a number for each side and leave the verdict to the reader. They go first, since CUPTI
may slow later launches of the same process. Then ours judges the pairs that the peers had, and the others.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

import numpy as np
import torch
from torch.utils.benchmark import Timer
from triton.testing import do_bench, do_bench_cudagraph

from benchmarks.common import digits, load_average, page, publish, table
from benchmarks.timer.calls import gelu, matmul, spinning
from benchmarks.timer.peers import defaults
from runner.device import identity
from runner.measure.benchmark import Benchmark
from runner.store import run_folder
from runner.timing import statistics
from runner.timing.call import Call
from runner.timing.statistics import SAME, ZONE, Ratio, Relation, pair_floors
from runner.worker import tidy

SIZES_LOG2 = (18, 20, 22, 23, 24)
OTHERS = 20  # pairs of each other call
MOST_DIFFERENT, LEAST_SAME, SURE_US, LEAST_FOUND = 0.02, 0.90, 8.0, 0.95  # the bars
BESIDE = 12  # pairs of each spin that has no bar
SLOW_US, SLOW_S = 100.0, 0.15  # sides of at least SLOW_US are sampled for SLOW_S at most: a quarter of the default

KEPT, SMALLEST_LOG2, LARGEST_LOG2 = 24, 12, 26  # allocations between the pairs, and their bytes
ANEW = 0.25  # share of the pairs before which the allocator returns its free memory to the driver
SEED = 0

DO_BENCH_MS, TIMER_S = 50, 0.05  # half and a quarter of the defaults; all other settings are defaults
INSTRUMENT = "graph_timestamps"
OURS, OURS_SHARED = "ours", "ours, the pairs that the peers had"
DIFFERENT: tuple[Relation, ...] = ("faster", "slower")

Run = Callable[[], object]


@dataclass(frozen=True)
class Longer:
    """A spin, and one that takes ``share`` longer, launch included."""

    us: float
    share: float
    promised: bool  # counts for the bar

    @property
    def name(self) -> str:
        """The name, such as ``spin 17 us +1 %``."""
        return f"spin {self.us:g} us +{100 * self.share:g} %"


LONGER = tuple(
    Longer(us, share, (us, share) in {(5.0, 0.02), (17.0, 0.01), (450.0, 0.01)})
    for us in (5.0, 17.0, 450.0)
    for share in (0.01, 0.02)
)


@dataclass(frozen=True)
class Pair:
    """Two calls to be compared."""

    call: str
    first: Run
    second: Run


@dataclass(frozen=True)
class Judged:
    """Our verdict on a pair."""

    call: str
    us: float  # of the first
    ratio: Ratio  # of the second to the first
    seconds: float
    shared: bool  # the peers timed it too


@dataclass(frozen=True)
class Said:
    """The time of one call by a peer."""

    us: float
    iqr_us: float | None = None


@dataclass(frozen=True)
class Heard:
    """The times of a pair by a peer."""

    call: str
    method: str
    first: Said
    second: Said
    seconds: float

    @property
    def off(self) -> float:
        """Relative difference of the second from the first; negative if the second is faster."""
        return self.second.us / self.first.us - 1

    @property
    def beyond_iqr(self) -> bool | None:
        """Whether the difference exceeds the mean of both interquartile ranges; None if there are none."""
        if self.first.iqr_us is None or self.second.iqr_us is None:
            return None
        return abs(self.second.us - self.first.us) > (self.first.iqr_us + self.second.iqr_us) / 2


# --- what follows from the pairs; no GPU ---


def bars(equal: Sequence[Judged], longer: Mapping[str, Sequence[Judged]]) -> list[tuple[str, str, str]]:
    """Return for each bar its text, the result, and PASS or MISS."""
    different = [one.ratio.word in DIFFERENT for one in equal]
    same = [one.ratio.word == "same" for one in equal if one.us >= SURE_US]
    found = [one.ratio.word == "slower" for spin in LONGER if spin.promised for one in longer[spin.name]]
    lines = [
        (
            f"equal calls told apart in {100 * MOST_DIFFERENT:g} % or less",
            different,
            fmean(different) <= MOST_DIFFERENT,
        ),
        (
            f"equal calls of {SURE_US:g} us and more called the same in {100 * LEAST_SAME:g} % or more",
            same,
            bool(same) and fmean(same) >= LEAST_SAME,
        ),
        (
            f"{', '.join(spin.name for spin in LONGER if spin.promised)} found in {100 * LEAST_FOUND:g} % or more",
            found,
            fmean(found) >= LEAST_FOUND,
        ),
    ]
    return [(promise, _count(seen), "PASS" if met else "MISS") for promise, seen, met in lines]


def equal_table(equal: Sequence[Judged], heard: Sequence[Heard]) -> str:
    """Return a table with a line for each call: our verdicts, and the distances of all ratios from 1."""
    titles = ["call", "us", "pairs", "same", "unclear", "different", "in one table", *(f"{m}, %" for m in _methods())]
    in_table = statistics.words([one.ratio for one in equal])
    lines = []
    for call in dict.fromkeys(one.call for one in equal):
        own = [one for one in equal if one.call == call]
        after = [word for one, word in zip(equal, in_table, strict=True) if one.call == call]
        words = [one.ratio.word for one in own]
        offs = [[_off(one) for one in own], *(_offs(heard, method, call) for method in PEERS)]
        lines.append(
            (
                call,
                median(one.us for one in own),
                len(own),
                words.count("same"),
                words.count("unclear"),
                sum(word in DIFFERENT for word in words),
                sum(word in DIFFERENT for word in after),
                *(_far(some) for some in offs),
            )
        )
    return table(titles, lines)


def reader_table(equal: Sequence[Judged], heard: Sequence[Heard]) -> str:
    """Return a table with a line for each method: how often two numbers of one call seem different, and the cost."""
    own = {
        OURS: [(_off(one), None, one.seconds) for one in equal],
        OURS_SHARED: [(_off(one), None, one.seconds) for one in equal if one.shared],
    }
    theirs = {m: [(one.off, one.beyond_iqr, one.seconds) for one in heard if one.method == m] for m in PEERS}
    lines = []
    for method, found in (own | theirs).items():
        if not found:
            continue
        offs, boxes, seconds = ([one[part] for one in found] for part in range(3))
        apart = [bool(box) for box in boxes if box is not None]
        lines.append(
            (
                method,
                len(found),
                *(_count([abs(off) > zone for off in offs]) for zone in (ZONE, SAME)),
                _far(offs),
                _count(apart) if apart else "",
                median(seconds),
            )
        )
    titles = ["method", "pairs", f"off by > {100 * ZONE:g} %", f"by > {100 * SAME:g} %", "95th percentile, %"]
    return table([*titles, "beyond its IQR", "s a pair"], lines)


def longer_table(longer: Mapping[str, Sequence[Judged]], heard: Sequence[Heard]) -> str:
    """Return a table with a line for each spin: our verdicts, for each method the ratio and its count beyond ZONE."""
    in_table = statistics.words([one.ratio for some in longer.values() for one in some])
    lines, start = [], 0
    for spin in LONGER:
        own = longer[spin.name]
        after = in_table[start : start + len(own)]
        start += len(own)
        figures = [[_off(one) for one in own], *(_offs(heard, method, spin.name) for method in PEERS)]
        lines.append(
            (
                spin.name + (" (bar)" if spin.promised else ""),
                _count([one.ratio.word == "slower" for one in own]),
                _count([word == "slower" for word in after]),
                digits(100 * median(one.ratio.half for one in own)),
                *(_beyond(some) for some in figures),
            )
        )
    return table(["spin", "found", "in one table", "width, %", *_methods()], lines)


def cost_table(judged: Sequence[Judged], heard: Sequence[Heard]) -> str:
    """Return a table of the median seconds of a pair, both sides together."""
    lines = []
    for call in dict.fromkeys(one.call for one in judged):
        own = [one.seconds for one in judged if one.call == call]
        theirs = [[one.seconds for one in heard if (one.call, one.method) == (call, method)] for method in PEERS]
        lines.append((call, *(median(some) if some else "" for some in (own, *theirs))))
    return table(["call", *_methods()], lines)


def report(
    equal: Sequence[Judged], longer: Mapping[str, Sequence[Judged]], heard: Sequence[Heard], first_s: float
) -> str:
    """Return the bars and all tables."""
    every = [*equal, *(one for some in longer.values() for one in some)]
    of_equal = [one for one in heard if one.call not in longer]
    return "\n\n".join(
        [
            "## Bars\n\n" + table(["bar", "seen", ""], bars(equal, longer)),
            "## Equal calls\n\n" + equal_table(equal, of_equal),
            "Same, unclear, different: the verdict for the pair alone. In one table: still different if all pairs are "
            "lines of one table (Holm's method). Then the 95th percentile of |ratio - 1| of each method, in percent. "
            f"The peers have {_shared(of_equal)} pairs of each call, for which it is close to the largest.",
            "## Equal calls as a reader takes them\n\n" + reader_table(equal, of_equal),
            "No peer gives a verdict: a reader takes two numbers for different from some percentage on. "
            "Beyond its IQR: the medians differ by more than the mean of the interquartile ranges that Timer gives. "
            f"do_bench with rep={DO_BENCH_MS}, its median; do_bench_cudagraph with its defaults; Timer with "
            f"blocked_autorange(min_run_time={TIMER_S:g}), its median.",
            "## A call that is longer\n\n" + longer_table(longer, heard),
            f"Found: the verdict is slower. Width: median of half the interval. Then, for each method, the median "
            f"difference, and the number of pairs in which it is above {100 * ZONE:g} %. Spins of {SLOW_US:g} us and "
            f"more are sampled for {SLOW_S:g} s a side at most, a quarter of the default.",
            "## Cost of a pair, s\n\n" + cost_table(every, heard),
            f"Both sides, captures included. The first pair of the process took ours {first_s:.2f} s: CUPTI starts, "
            "kernels are compiled or loaded, the constant is measured.",
        ]
    )


def _methods() -> list[str]:
    return [OURS, *PEERS]


def _off(one: Judged) -> float:
    """Return the logarithm of the ratio, which is nearly its relative distance from 1."""
    return one.ratio.log


def _offs(heard: Sequence[Heard], method: str, call: str) -> list[float]:
    return [one.off for one in heard if (one.method, one.call) == (method, call)]


def _far(offs: Sequence[float]) -> str:
    """Return the 95th percentile of the distance from 1, in percent."""
    return digits(100 * float(np.quantile(np.abs(offs), 0.95))) if offs else ""


def _beyond(offs: Sequence[float]) -> str:
    """Return the median and the count beyond the zone, such as ``+1.02 %, 6 of 6``."""
    return f"{100 * median(offs):+.2f} %, {_count([off > ZONE for off in offs])}" if offs else ""


def _count(some: Sequence[bool]) -> str:
    return f"{sum(some)} of {len(some)}"


def _shared(heard: Sequence[Heard]) -> int:
    """Return the number of pairs of one call that one peer timed."""
    counts = [sum((one.call, one.method) == (other.call, other.method) for other in heard) for one in heard]
    return max(counts, default=0)


# --- on the GPU ---


class Clutter:
    """Allocations of random sizes that stay for a while, so that the next buffers get other addresses."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._held: list[torch.Tensor] = []

    def stir(self) -> None:
        """Make two more allocations. Each replaces an earlier one once there are ``KEPT``."""
        if self._chance.random() < ANEW:
            torch.cuda.empty_cache()
        for _ in range(2):
            size = int(2 ** self._chance.uniform(SMALLEST_LOG2, LARGEST_LOG2))
            if len(self._held) >= KEPT:
                self._held.pop(self._chance.randrange(KEPT))
            self._held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))


EQUAL: dict[str, Callable[[], Run]] = {
    **{f"gelu 2^{log2}": lambda log2=log2: gelu(2**log2) for log2 in SIZES_LOG2},
    "chain of 9 gelu 2^10": lambda: gelu(2**10, times=9),
    "matmul 1024": lambda: matmul(1024),
}


def equal_pairs(
    count: int, others: int, clutter: Clutter, calls: Mapping[str, Callable[[], Run]] = EQUAL
) -> Iterator[Pair]:
    """Yield ``count`` pairs of each size of GELU and ``others`` of each other call, the calls in turn."""
    for turn in range(max(count, others)):
        for name, make in calls.items():
            if turn < (count if name.startswith("gelu") else others):
                clutter.stir()
                call = make()
                yield Pair(name, call, call)


def longer_pair(spin: Longer) -> Pair:
    """Return a pair of spins; the second is longer."""
    return Pair(spin.name, spinning(spin.us), spinning(spin.us * (1 + spin.share)))


def by_do_bench(call: Run) -> Said:
    """Time ``call`` with do_bench: the median, in half the default time."""
    return Said(float(do_bench(call, rep=DO_BENCH_MS, return_mode="median")) * 1e3)


def by_do_bench_cudagraph(call: Run) -> Said:
    """Time ``call`` with do_bench_cudagraph and its defaults: a mean."""
    return Said(float(do_bench_cudagraph(call)) * 1e3)


def by_timer(call: Run) -> Said:
    """Time ``call`` with torch's Timer: median and interquartile range, in a quarter of the default time."""
    found = Timer("call()", globals={"call": call}).blocked_autorange(min_run_time=TIMER_S)
    return Said(found.median * 1e6, found.iqr * 1e6)


PEERS: dict[str, Callable[[Run], Said]] = {
    "do_bench": by_do_bench,
    "do_bench_cudagraph": by_do_bench_cudagraph,
    "Timer": by_timer,
}


def by_peers(pair: Pair, chance: random.Random, peers: Mapping[str, Callable[[Run], Said]] = PEERS) -> list[Heard]:
    """Time ``pair`` with every peer, in random order of the sides."""
    found = []
    for method, peer in peers.items():
        said: dict[bool, Said] = {}
        began = time.perf_counter()
        for is_first in chance.sample((True, False), 2):
            said[is_first] = peer(pair.first if is_first else pair.second)
        found.append(Heard(pair.call, method, said[True], said[False], time.perf_counter() - began))
    return found


def judge(pair: Pair, settings: Benchmark, *, shared: bool) -> Judged:
    """Compare ``pair`` as a sweep compares two implementations. Raises RuntimeError if that is impossible."""
    began = time.perf_counter()
    columns = {"instrument": INSTRUMENT}
    calls = [(Call(run), columns) for run in (pair.second, pair.first)]  # type: ignore[arg-type]  # outputs unused
    both = settings.compare(calls, "cuda")
    if both is None:
        raise RuntimeError(f"{pair.call}: there is no time for rounds in which its two sides are sampled in turn")
    (name, second_us, *_), (other, first_us, *_) = both
    ratio = statistics.paired(second_us, first_us, pair_floors(name, other))
    return Judged(pair.call, fmean(first_us), ratio, time.perf_counter() - began, shared)


def judge_longer(spin: Longer, count: int, had: Sequence[Pair], settings: Benchmark) -> list[Judged]:
    """Judge ``count`` pairs of ``spin``, first those that the peers ``had``."""
    if spin.us >= SLOW_US:
        settings = replace(settings, max_s=min(SLOW_S, settings.max_s))
    fresh = [longer_pair(spin) for _ in range(count - len(had))]
    judged = [judge(pair, settings, shared=place < len(had)) for place, pair in enumerate([*had, *fresh])]
    found = sum(one.ratio.word == "slower" for one in judged)
    print(f"{spin.name}: found in {found} of {len(judged)}", flush=True)
    return judged


def main() -> None:
    """Run everything and print the page; with --write keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=40, help="of equal calls, each size of GELU")
    parser.add_argument("--longer", type=int, default=34, help="of each spin in the bar with a longer one")
    parser.add_argument("--peers", type=int, default=6, help="of the pairs of each call, those that the peers have too")
    parser.add_argument("--write", action="store_true", help="keep the tables in benchmarks/results/")
    options, load, started = parser.parse_args(), load_average(), time.perf_counter()
    if min(options.pairs, options.longer) < max(1, options.peers):
        parser.error("--pairs and --longer: at least 1, and no fewer than --peers")
    torch.manual_seed(SEED)
    chance, settings = random.Random(SEED), defaults()
    clutter = Clutter(chance)

    had = list(equal_pairs(options.peers, options.peers, clutter))
    had_longer = {
        spin.name: [longer_pair(spin) for _ in range(options.peers if spin.promised else 0)] for spin in LONGER
    }
    heard: list[Heard] = []
    for pair in [*had, *(one for some in had_longer.values() for one in some)]:
        heard += by_peers(pair, chance)
    print(f"peers done after {time.perf_counter() - started:.0f} s", flush=True)

    tidy()  # as a worker does before its first case
    first_s = judge(next(equal_pairs(1, 1, clutter)), settings, shared=False).seconds
    equal = [judge(pair, settings, shared=True) for pair in had]
    had.clear()  # their memory may go
    others = max(0, min(OTHERS, options.pairs) - options.peers)
    equal += [
        judge(pair, settings, shared=False) for pair in equal_pairs(options.pairs - options.peers, others, clutter)
    ]
    print(f"equal calls done after {time.perf_counter() - started:.0f} s", flush=True)
    longer = {
        spin.name: judge_longer(
            spin, options.longer if spin.promised else min(BESIDE, options.longer), had_longer[spin.name], settings
        )
        for spin in LONGER
    }
    body = f"All of it took {time.perf_counter() - started:.0f} s.\n\n" + report(equal, longer, heard, first_s)
    facts = {**run_folder.environment(sys.argv[1:]), "worker": identity.describe()}
    publish("fair_pairs", page("Told apart when they differ", body, facts, load), facts, options.write)


if __name__ == "__main__":
    main()
