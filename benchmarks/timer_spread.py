"""How far apart fresh processes time the same call, and how often two equal or unequal calls are told as such.

    python -m benchmarks.timer_spread [--processes 16] [--rounds 20] [--out DIR] [--write]

Each process times the same calls twice, A and A', with buffers of their own, and spins also 1 and 2 % longer; by
stamps as this project has them, and by CUDA event pairs in one-sample graphs behind the same flush. All of it is
interleaved: the arms are captured in shuffled order and sampled in shuffled rounds. One process at a time is on the
GPU; the next one only imports torch meanwhile. What a process has measured goes to DIR/process-NN.jsonl when it is
done; ``--processes 0 --out DIR`` prints the tables of what is there.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any, Literal

import torch

from benchmarks.common import ROOT, digits, load_average, page, publish, table
from runner import hardware, run_dir
from runner.measure import calibration
from runner.measure.floors import FLOORS
from runner.measure.flush import reading_flush
from runner.measure.gpu_kernels import spin
from runner.measure.stamped_graphs import StampedGraphs
from runner.measure.statistics import BATCHES, LOOK_TWICE, T_975, Floor, summarise, trimmed_mean

CAPTURES, WARMUP_ROUNDS = 20, 3
SHORT_US, SHORT_MORE = 5.0, 4  # of what takes less, more samples
LIMIT_S = 180.0  # of one process; on an H100 it takes about 8
ZONE, SAME = 0.005, 0.01  # a difference within the first is none to call; within the second, two times are the same
APART = 0.01  # between two processes

METHODS = ("stamps", "events")
# One standard deviation of the ratio's two sides when the arms are interleaved: ``FLOORS`` is for one alone.
PAIR_FLOORS = {"stamps": Floor(0.005, 0.0003), "events": Floor(0.02, 0.0005)}

FIRST, AGAIN, LONGER_1, LONGER_2 = "A", "A'", "+1 %", "+2 %"
NULL = "null"
SPINS_US = (5, 17, 450)
MHZ, LAUNCH_US = 1980, 0.75  # of the spins: the same cycles in every process; a null kernel is 0.6 to 0.9 us

Call = Callable[[], object]
Word = Literal["slower", "faster", "same", "unclear"]


@dataclass(frozen=True)
class Arm:
    """One call with its own buffers, by one method."""

    call: str
    role: str  # FIRST, AGAIN, LONGER_1, LONGER_2
    method: str  # one of METHODS


@dataclass(frozen=True)
class Process:
    """What one process has measured: samples less the constant of their method, us, in the order they were taken."""

    head: dict[str, Any]
    series: dict[Arm, list[float]]


@dataclass(frozen=True)
class Pair:
    """Whether B takes longer than A."""

    log_ratio: float  # of B over A
    half: float  # of its 95 % interval
    word: Word


@dataclass(frozen=True)
class Spread:
    """One call by one method in all processes. Lists are A's and A''s alike."""

    call: str
    time_us: float
    sd_ns: float  # between processes
    pairs_apart: list[bool]  # each two processes
    again: list[Pair]  # A' against A, one of each process
    covered: list[bool]  # the value of all processes by the whole interval of each; empty where there is no interval


@dataclass(frozen=True)
class Longer:
    """A spin against one that is longer, by one method: in each process against A and against A'."""

    call: str
    role: str
    pairs: list[Pair]

    @property
    def found(self) -> float:
        """Share of the pairs that were called slower."""
        return fmean(pair.word == "slower" for pair in self.pairs)


# --- what follows from series; no GPU ---


def pair(a: Sequence[float], b: Sequence[float], floor: Floor) -> Pair:
    """B against A, sampled in the same rounds: ten consecutive batches of each, and the ``floor`` of both sides."""
    means = ([trimmed_mean(batch) for batch in batches(samples)] for samples in (a, b))
    logs = [math.log(after / before) for before, after in zip(*means, strict=True)]
    time_us = trimmed_mean(a)
    sampling = T_975[BATCHES - 1] * stdev(logs) / math.sqrt(BATCHES) * LOOK_TWICE
    half = math.hypot(sampling, math.sqrt(2) * floor.widen(0.0, time_us) / time_us)
    log_ratio = math.log(trimmed_mean(b) / time_us)
    return Pair(log_ratio, half, judged(log_ratio, half))


def judged(log_ratio: float, half: float) -> Word:
    """The word for a ratio and half its interval; "same" is never said for lack of data."""
    if abs(log_ratio) - half > ZONE:
        return "slower" if log_ratio > 0 else "faster"
    return "same" if abs(log_ratio) + half < SAME else "unclear"


def batches(samples: Sequence[float]) -> list[Sequence[float]]:
    """``BATCHES`` parts in the order of time. Raises ValueError if there are fewer samples than that."""
    if len(samples) < BATCHES:
        raise ValueError(f"{len(samples)} samples do not make {BATCHES} batches")
    edges = [len(samples) * part // BATCHES for part in range(BATCHES + 1)]
    return [samples[edges[part] : edges[part + 1]] for part in range(BATCHES)]


def apart(times_us: Sequence[float]) -> list[bool]:
    """Of each two processes, whether their times differ by more than ``APART``."""
    return [abs(math.log(one / other)) > APART for one, other in combinations(times_us, 2)]


def covered(series: Sequence[Sequence[float]], floor: Floor) -> list[bool]:
    """Of each process, whether its whole interval holds the mean of all processes' estimates."""
    summaries = [summarise(samples) for samples in series]
    value = fmean(summary.estimate for summary in summaries)
    return [
        abs(summary.estimate - value) <= floor.widen(summary.half_width * summary.estimate, summary.estimate)
        for summary in summaries
    ]


def spread(processes: Sequence[Process], call: str, method: str) -> Spread:
    """What the processes say of ``call``, by one method."""
    arms = [[process.series[Arm(call, role, method)] for process in processes] for role in (FIRST, AGAIN)]
    times = [[trimmed_mean(samples) for samples in arm] for arm in arms]
    floor = FLOORS["stamped_graphs"] if method == "stamps" else None
    return Spread(
        call=call,
        time_us=fmean(fmean(arm) for arm in times),
        sd_ns=math.hypot(*(stdev(arm) for arm in times)) / math.sqrt(len(times)) * 1e3,
        pairs_apart=[far for arm in times for far in apart(arm)],
        again=[pair(first, again, PAIR_FLOORS[method]) for first, again in zip(*arms, strict=True)],
        covered=[holds for arm in arms for holds in covered(arm, floor)] if floor else [],
    )


def longer(processes: Sequence[Process], call: str, role: str, method: str) -> Longer:
    """Whether the processes found the longer spin."""
    pairs = [
        pair(process.series[Arm(call, base, method)], process.series[Arm(call, role, method)], PAIR_FLOORS[method])
        for process in processes
        for base in (FIRST, AGAIN)
    ]
    return Longer(call, role, pairs)


# --- one process on the GPU ---


class EventGraphs:
    """Event pairs at their best: in graphs of one sample, replayed one at a time behind a flush that only reads."""

    def __init__(self, call: Call, flush: Call, chance: random.Random) -> None:
        self._chance = chance
        self._stream = torch.cuda.Stream()
        self._stream.wait_stream(torch.cuda.current_stream())
        self._pairs: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._graphs: list[torch.cuda.CUDAGraph] = []
        pool = torch.cuda.graph_pool_handle()
        with torch.cuda.stream(self._stream):
            flush()
            call()
            self._stream.synchronize()
            for _ in range(CAPTURES):
                self._capture(call, flush, pool)

    def samples(self, count: int) -> list[float]:
        """``count`` times of one call or a few more, in microseconds, in the order they were taken."""
        times: list[float] = []
        while len(times) < count:
            with torch.cuda.stream(self._stream):
                for index in self._chance.sample(range(CAPTURES), CAPTURES):
                    self._graphs[index].replay()
                    self._stream.synchronize()
                    start, end = self._pairs[index]
                    times.append(start.elapsed_time(end) * 1e3)
        return times

    def _capture(self, call: Call, flush: Call, pool: Any) -> None:
        graph = torch.cuda.CUDAGraph()
        start, end = (torch.cuda.Event(enable_timing=True, external=True) for _ in range(2))
        with torch.cuda.graph(graph, pool=pool, stream=self._stream):
            flush()
            start.record()
            call()
            end.record()
        self._graphs.append(graph)
        self._pairs.append((start, end))


def gelu(count: int, times: int = 1) -> Call:
    """GELU (tanh) of ``count`` float32, ``times`` in a row."""
    x = torch.randn(count, device="cuda")
    y = torch.empty_like(x)

    def call() -> None:
        for _ in range(times):
            torch._C._nn.gelu(x, approximate="tanh", out=y)

    return call


def softmax(rows: int, cols: int) -> Call:
    """Softmax of each row, float32."""
    x = torch.randn(rows, cols, device="cuda")
    y = torch.empty_like(x)
    return lambda: torch.softmax(x, 1, out=y)


def matmul(size: int) -> Call:
    """Product of two square matrices, bfloat16."""
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    c = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=c)


def spinning(us: float) -> Call:
    """A spin of about ``us``, its launch included."""
    cycles = round((us - LAUNCH_US) * MHZ)
    return lambda: spin[(1,)](cycles, num_warps=1)


CALLS: dict[str, Callable[[], Call]] = {
    **{f"gelu 2^{log2}": lambda log2=log2: gelu(2**log2) for log2 in (18, 20, 22, 23, 24, 26)},
    "softmax 4096x1024": lambda: softmax(4096, 1024),
    "matmul 1024": lambda: matmul(1024),
    "matmul 2048": lambda: matmul(2048),
    "chain of 9 gelu 2^10": lambda: gelu(2**10, times=9),
    **{f"spin {us} us": lambda us=us: spinning(us) for us in SPINS_US},
}


def make_calls() -> dict[tuple[str, str], Call]:
    """Every call and role, each with new buffers."""
    made = {(call, role): make() for call, make in CALLS.items() for role in (FIRST, AGAIN)}
    for us in SPINS_US:
        made |= {(f"spin {us} us", role): spinning(us * more) for role, more in ((LONGER_1, 1.01), (LONGER_2, 1.02))}
    return made


def measure(index: int, rounds: int) -> Process:
    """Everything, in this process; ``index`` seeds the data and the order of captures and samples."""
    started, chance = time.perf_counter(), random.Random(index)
    torch.manual_seed(index)
    constant_us = calibration.graph_constant_us(cold_l2=True, captures=CAPTURES)
    flush, calls = reading_flush(), make_calls()
    arms = [Arm(*made, method) for made in calls for method in METHODS] + [Arm(NULL, FIRST, "events")]
    calls[NULL, FIRST] = calibration.launch_null  # what events read where nothing happens; stamps have it already
    chance.shuffle(arms)
    instruments: dict[Arm, StampedGraphs | EventGraphs] = {}
    for arm in arms:
        call = calls[arm.call, arm.role]
        if arm.method == "stamps":
            instruments[arm] = StampedGraphs(call, flush, captures=CAPTURES, constant_us=constant_us)
        else:
            instruments[arm] = EventGraphs(call, flush, chance)
    ready = time.perf_counter()
    series = sample(instruments, rounds, chance)
    event_constant_us = trimmed_mean(series.pop(Arm(NULL, FIRST, "events"))) - calibration.null_us()
    for arm, samples in series.items():
        if arm.method == "events":
            series[arm] = [us - event_constant_us for us in samples]
    head = {
        "index": index,
        "worker": hardware.describe(),
        "constant_us": {"stamps": constant_us, "events": event_constant_us},
        "null_us": calibration.null_us(),
        "unloaded_mhz": calibration.unloaded_mhz(),
        "setup_s": ready - started,
        "sampling_s": time.perf_counter() - ready,
    }
    return Process(head, series)


def sample(
    instruments: dict[Arm, StampedGraphs | EventGraphs], rounds: int, chance: random.Random
) -> dict[Arm, list[float]]:
    """Rounds in which every capture of every arm is replayed once, the arms in an order drawn anew.

    Those of short calls are replayed ``SHORT_MORE`` times: so many samples the procedure itself takes of them.
    """
    series: dict[Arm, list[float]] = {arm: [] for arm in instruments}
    order, replays = list(instruments), dict.fromkeys(instruments, 1)
    for turn in range(-WARMUP_ROUNDS, rounds):
        chance.shuffle(order)
        for arm in order:
            times = instruments[arm].samples(CAPTURES * replays[arm])
            if turn >= 0:
                series[arm] += times
            elif trimmed_mean(times) < SHORT_US:
                replays[arm] = SHORT_MORE
    return series


def keep(process: Process, path: Path) -> None:
    """A line of facts, then a line an arm; the file has its name only when it is whole."""
    lines: list[dict[str, Any]] = [process.head]
    lines += [{**vars(arm), "samples": [round(us, 4) for us in some]} for arm, some in process.series.items()]
    part = path.with_suffix(".part")
    part.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    part.rename(path)


def kept(path: Path) -> Process:
    """What ``keep`` has written."""
    head, *lines = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return Process(head, {Arm(line["call"], line["role"], line["method"]): line["samples"] for line in lines})


# --- all processes, and the page ---


def main() -> None:
    """Runs the processes, prints and perhaps writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=16, help="0: only the tables of what is in --out")
    parser.add_argument("--rounds", type=int, default=20, help=f"each of {CAPTURES} samples an arm")
    parser.add_argument("--out", type=Path, help="folder for the raw samples; a temporary one that stays, if not given")
    parser.add_argument("--write", action="store_true", help="keep the tables in benchmarks/results/")
    parser.add_argument("--measure", type=int, metavar="INDEX", help=argparse.SUPPRESS)  # be one of the processes
    options, load = parser.parse_args(), load_average()
    if options.measure is not None:
        if sys.stdin.readline():  # imported; and the GPU is free now. Nothing to read: the parent has gone
            keep(measure(options.measure, options.rounds), raw(options.out, options.measure))
        return
    if CAPTURES * options.rounds < 20 * BATCHES:
        parser.error(f"--rounds {options.rounds}: take {20 * BATCHES // CAPTURES} or more, for 20 samples a batch")
    out = options.out or Path(tempfile.mkdtemp(prefix="timer-spread-"))
    out.mkdir(parents=True, exist_ok=True)
    print(f"raw samples: {out}", flush=True)
    seconds = run_all(out, options.processes, options.rounds)
    processes = [kept(path) for path in sorted(out.glob("process-*.jsonl"))]
    if len(processes) < 2:
        raise SystemExit(f"{len(processes)} processes in {out} have finished: at least 2 are needed")
    facts = {**run_dir.environment(sys.argv[1:]), "worker": processes[0].head["worker"]}
    publish(
        "timer_spread", page("Spread between processes", report(processes, seconds), facts, load), facts, options.write
    )


def raw(out: Path, index: int) -> Path:
    """Where process ``index`` keeps what it measures."""
    return out / f"process-{index:02d}.jsonl"


def run_all(out: Path, count: int, rounds: int) -> float:
    """Seconds for ``count`` processes, one on the GPU at a time. One that fails is told of, and the others go on."""
    started = time.perf_counter()
    for index in range(count):
        raw(out, index).unlink(missing_ok=True)
    waiting = launch(out, 0, rounds) if count else None
    for index in range(count):
        process = waiting
        assert process is not None
        waiting = launch(out, index + 1, rounds) if index + 1 < count else None
        began = time.perf_counter()
        try:
            process.communicate("go\n", timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        except BaseException:
            for each in filter(None, (process, waiting)):
                each.kill()
            raise
        ended = "done" if process.returncode == 0 else f"FAILED with code {process.returncode}"
        print(f"process {index + 1} of {count}: {ended} after {time.perf_counter() - began:.1f} s", flush=True)
    return time.perf_counter() - started


def launch(out: Path, index: int, rounds: int) -> subprocess.Popen[str]:
    """A process that imports torch, and measures once it reads a line."""
    words = ["--measure", str(index), "--rounds", str(rounds), "--out", str(out.resolve())]
    command = [sys.executable, "-m", "benchmarks.timer_spread", *words]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, text=True)


def report(processes: Sequence[Process], seconds: float) -> str:
    """The bars and both tables."""
    spreads = {method: [spread(processes, call, method) for call in CALLS] for method in METHODS}
    found = {
        method: [longer(processes, f"spin {us} us", role, method) for us in SPINS_US for role in (LONGER_1, LONGER_2)]
        for method in METHODS
    }
    count = len(next(iter(processes[0].series.values())))
    constants = {method: [process.head["constant_us"][method] for process in processes] for method in METHODS}
    taken_off = ", ".join(
        f"{method} {fmean(some):.3f} us (sd between processes {stdev(some) * 1e3:.1f} ns)"
        for method, some in constants.items()
    )
    null_us = fmean(process.head["null_us"] for process in processes)
    inside_s = median(process.head["setup_s"] + process.head["sampling_s"] for process in processes)
    return "\n\n".join(
        [
            f"{len(processes)} fresh processes, {count} samples an arm from {CAPTURES} captures. Taken off: "
            f"{taken_off}; what is left of a null kernel is what CUPTI gives it, {null_us:.3f} us. {inside_s:.1f} s a "
            "process, after its imports" + (f", {seconds:.0f} s in all." if seconds else "."),
            "## Bars, for stamps\n\n" + table(["bar", "seen", ""], bars(spreads["stamps"], found["stamps"])),
            "## The same call in every process: stamps / events\n\n"
            + spread_table(spreads["stamps"], spreads["events"])
            + "\n\nsd: between processes. Apart: pairs of processes more than 1 % apart. A/A': pairs in one process "
            "called different, or the same within 1 %. Coverage: whole intervals of one process, by stamps, that hold "
            "the mean of all. A'/A: median; A and A' have other buffers, and where these lie makes up to 6 %, for both "
            "methods alike: they time the same buffers. That equal calls on the same buffers are not called different "
            "is shown by `benchmarks.fair_pairs`.",
            "## A spin that is longer: stamps / events\n\n"
            + longer_table(found["stamps"], found["events"])
            + "\n\nRead: median of the ratio. Width: median of half its interval. Found: called slower.",
        ]
    )


def bars(spreads: Sequence[Spread], found: Sequence[Longer]) -> list[tuple[str, str, str]]:
    """What was promised, what was seen, PASS or MISS."""
    farthest = max(spreads, key=lambda one: fmean(one.pairs_apart))
    least = 1 - fmean(farthest.pairs_apart)
    within = 1 - fmean(apart for each in spreads for apart in each.pairs_apart)
    lines = [
        (
            "two processes within 1 % in 98 % of pairs or more",
            f"{100 * within:.1f} % of all ({farthest.call}: {100 * least:.1f} %)",
            within >= 0.98,
        ),
    ]
    if short := [one for one in spreads if one.time_us < 30]:
        widest = max(short, key=lambda one: one.sd_ns)
        lines.append(("sd 40 ns or less below 30 us", f"{widest.sd_ns:.1f} ns ({widest.call})", widest.sd_ns <= 40))
    for one in found:
        if (one.call, one.role) in PROMISED:
            lines.append(
                (f"{one.role} of {one.call} found in 95 % or more", _count(one.pairs, ("slower",)), one.found >= 0.95)
            )
    holds = [inside for each in spreads for inside in each.covered]
    lines.append(("coverage 93 to 100 %", _percent(holds), fmean(holds) >= 0.93))
    return [(promise, seen, "PASS" if met else "MISS") for promise, seen, met in lines]


PROMISED = {("spin 5 us", LONGER_2), ("spin 17 us", LONGER_1), ("spin 450 us", LONGER_1)}


def spread_table(stamps: Sequence[Spread], events: Sequence[Spread]) -> str:
    """A line a call."""
    titles = ["call", "us", "sd, ns", "apart, %", "A'/A, %", "A/A' different", "A/A' same", "coverage, %"]
    lines = []
    for both in zip(stamps, events, strict=True):
        lines.append(
            (
                both[0].call,
                " / ".join(f"{one.time_us:.3f}" for one in both),
                " / ".join(f"{one.sd_ns:.1f}" for one in both),
                " / ".join(f"{100 * fmean(one.pairs_apart):.1f}" for one in both),
                " / ".join(_ratio(one.again) for one in both),
                " / ".join(_count(one.again, ("slower", "faster")) for one in both),
                " / ".join(_count(one.again, ("same",)) for one in both),
                f"{100 * fmean(both[0].covered):.0f}",
            )
        )
    return table(titles, lines)


def longer_table(stamps: Sequence[Longer], events: Sequence[Longer]) -> str:
    """A line a spin and length."""
    lines = []
    for both in zip(stamps, events, strict=True):
        lines.append(
            (
                f"{both[0].call} {both[0].role}",
                " / ".join(_ratio(one.pairs) for one in both),
                " / ".join(digits(100 * median(p.half for p in one.pairs)) for one in both),
                " / ".join(_count(one.pairs, ("slower",)) for one in both),
            )
        )
    return table(["spin", "read, %", "width, %", "found"], lines)


def _ratio(pairs: Sequence[Pair]) -> str:
    """What B takes more than A, in percent: median."""
    return f"{100 * math.expm1(median(one.log_ratio for one in pairs)):+.2f}"


def _count(pairs: Sequence[Pair], words: tuple[Word, ...]) -> str:
    return f"{sum(one.word in words for one in pairs)} of {len(pairs)}"


def _percent(some: Sequence[bool]) -> str:
    return f"{100 * fmean(some):.1f} % of {len(some)}"


if __name__ == "__main__":
    main()
