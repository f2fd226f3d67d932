"""Self-tests of the timings of this machine, on calls of known result; and the checks on a CPU."""

from __future__ import annotations

import gc
import math
import multiprocessing
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor

from runner.device import identity
from runner.timing import Batches, Call, TimingSettings, cpu
from runner.timing.procedure import CONTENDED_PCT
from runner.timing.statistics import Ratio, pair_floors, paired, shared_us, t_975

Process = Sequence[float]  # seconds since 1970, then the time in us of each call in a fresh process


@dataclass(frozen=True)
class Finding:
    """One line of the table."""

    name: str
    found: str  # with units
    bar: str  # requirement
    passed: bool
    separate_pct: float | None = None  # the column of later runs, from the check of separate times
    processes: Sequence[Process] = ()  # behind it, of this and earlier runs of ``verify``


class TooBusy(Exception):
    """Other processes use this machine so much that a check says nothing about its timings."""


@dataclass(frozen=True)
class Settings(TimingSettings):
    """Settings whose times and comparisons raise TooBusy if other processes disturbed them."""

    def time(self, call: Call, device: str) -> dict[str, Any]:
        """Return the columns of ``call``."""
        columns = super().time(call, device)
        if columns["verdict"] == "contended":
            raise TooBusy
        return columns

    def compare(self, calls: Sequence[tuple[Call, Mapping[str, Any]]], device: str) -> list[Batches]:
        """Return the batch means of ``calls``, which are short enough for paired rounds on a quiet machine."""
        wait_pct = cpu.waiting()
        found = super().compare(calls, device)
        if found is None or (device == "cpu" and wait_pct() > CONTENDED_PCT):
            raise TooBusy
        return found


Check = Callable[[Settings], list[Finding]]


def settings(conf: Path) -> Settings:
    """Return the default settings, from the YAML file in the folder ``conf``, without the measured peak."""
    import yaml

    values = yaml.safe_load((conf / "measure" / "benchmark.yaml").read_text(encoding="utf-8"))
    chosen = Settings(**{name: value for name, value in values.items() if name not in ("name", "quick")})
    return replace(chosen, measured_peak=False)


def checks(device: str) -> Mapping[str, Check]:
    """Return the checks of ``device``, "cpu" or "cuda", in order, by the name that the user sees."""
    if device == "cpu":
        return CPU_CHECKS
    from runner.timing.verify.cuda import CUDA_CHECKS

    return CUDA_CHECKS


def run(device: str, chosen: Settings, ended: Callable[[str, Sequence[Finding], float], None]) -> list[Finding]:
    """Run every check of ``device`` with the settings ``chosen``. A check that raises has failed, or was disturbed.

    ``ended`` is called after each check with its name, its findings, and the seconds that it took. A check that other
    processes have disturbed has no findings.
    """
    everything: list[Finding] = []
    gc.collect()
    gc.freeze()  # torch's 300,000 objects, which a collection during a sample would visit
    for name, check in checks(device).items():
        started = time.perf_counter()
        try:
            findings = check(chosen)
        except TooBusy:
            findings = []
        except Exception as error:
            line = str(error).strip().partition("\n")[0]
            findings = [Finding(name, f"{type(error).__name__}: {line}", "it can be done at all", passed=False)]
        gc.collect()  # frees the buffers of the check
        ended(name, findings, time.perf_counter() - started)
        everything += findings
    return everything


def certify(device: str, findings: Sequence[Finding]) -> Path | None:
    """Keep ``findings`` as the certificate of this machine. None if they cannot be kept."""
    facts = identity.identity() if device == "cuda" else identity.cpu_identity()
    return identity.certify(facts, device, [asdict(finding) for finding in findings])


SURE_US = 8.0  # shortest calls that must be called the same: below, the instrument's error is too large a share
SURE_SHARE = 0.9  # of those pairs


@dataclass(frozen=True)
class Compared:
    """One pair of calls."""

    ratio: Ratio  # of the first to the second
    us: float  # of the second


def compared(settings: Settings, device: str, first: Call, second: Call, instrument: str = "perf_counter") -> Compared:
    """Compare two calls in paired rounds, both timed by ``instrument``."""
    both = settings.compare([(call, {"instrument": instrument}) for call in (first, second)], device)
    (name, ours, _), (other, theirs, _) = both
    return Compared(paired(ours, theirs, pair_floors(name, other), shared_us(name, other)), fmean(theirs))


def alike(name: str, pairs: Sequence[Compared], most: int) -> Finding:
    """Check that at most ``most`` pairs of equal calls are called faster or slower."""
    different = sum(pair.ratio.word in ("faster", "slower") for pair in pairs)
    widest = 100 * max(abs(pair.ratio.log) for pair in pairs)
    found = f"{different} of {len(pairs)} called different, the largest difference {widest:.2f} %"
    return Finding(f"{name}: different", found, f"at most {most}", different <= most)


def sure(name: str, pairs: Sequence[Compared]) -> Finding:
    """Check that most pairs of equal and long enough calls are called the same."""
    long = [pair for pair in pairs if pair.us >= SURE_US]
    same = sum(pair.ratio.word == "same" for pair in long)
    found = f'{same} of the {len(long)} from {SURE_US:g} us up called "same"'
    return Finding(f"{name}: same", found, f"at least {100 * SURE_SHARE:.0f} %", same >= SURE_SHARE * len(long))


def slower(name: str, pairs: Sequence[Compared], share: float, least: int) -> Finding:
    """Check that at least ``least`` calls that are longer by ``share`` are called slower."""
    detected = sum(pair.ratio.word == "slower" for pair in pairs)
    read = 100 * fmean(pair.ratio.log for pair in pairs)
    found = f"found in {detected} of {len(pairs)}, measured as {read:+.2f} %"
    return Finding(f"{name}, {100 * share:g} % longer", found, f"at least {least}", detected >= least)


PROCESSES, MOST_PROCESSES = 6, 30  # of a run of ``verify``; of this and earlier ones
PROCESS_S = 0.15  # for the samples of one call


def separate(name: str, taken: Sequence[Process], most_pct: float, earlier: Sequence[Process] = ()) -> Finding:
    """Check how much separate times of one call differ: by processes ``taken`` now and by those of ``earlier`` runs."""
    processes = [*earlier, *taken][-MOST_PROCESSES:]
    moments, *series = zip(*processes, strict=True)
    spread = max(stdev(map(math.log, times_us)) for times_us in series)
    percent = 100 * t_975(len(processes) - 1) * math.sqrt(2) * spread
    minutes = (max(moments) - min(moments)) / 60
    found = (
        f"two times of one call differ by up to {percent:.2f} % (95 %): {len(processes)} processes in {minutes:.1f} min"
    )
    return Finding(name, found, f"at most {most_pct:g} %", percent <= most_pct, percent, processes)


def earlier(device: str) -> Sequence[Process]:
    """Return the processes behind the certificate of this machine, whose times are as valid as new ones."""
    found = (finding.get("processes") for finding in identity.certified(device))
    return next(filter(None, found), ())


def in_processes(settings: Settings, device: str, counts: Sequence[int]) -> list[Process]:
    """Time GELU of ``counts`` elements in ``PROCESSES`` fresh processes, one after the other."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])  # imported once, not in each process
    quick = replace(settings, max_s=min(settings.max_s, PROCESS_S))
    with ProcessPoolExecutor(1, context, max_tasks_per_child=1) as pool:
        return [pool.submit(_in_this_process, quick, device, counts).result() for _ in range(PROCESSES)]


def _in_this_process(settings: Settings, device: str, counts: Sequence[int]) -> Process:
    warnings.simplefilter("ignore")  # the parent has filtered its own
    column = "wall_us" if device == "cpu" else "gpu_us"
    return [time.time(), *(float(settings.time(gelu(count, device), device)[column]) for count in counts)]


def gelu(count: int, device: str) -> Call:
    """Return GELU (tanh) of ``count`` float32 values into an existing buffer."""
    function: Any = torch._C._nn.gelu  # takes a buffer for its output, unlike torch.nn.functional.gelu
    x = torch.randn(count, device=device)
    y = torch.empty_like(x)
    return Call(lambda: (function(x, approximate="tanh", out=y),))


LOOPS_US = (20.0, 200.0, 2000.0)
NEAR_US, NEAR_SHARE = 1.0, 0.02  # error allowed for the fastest sample: the operating system delays the others
PAIRS, MOST, LEAST = 10, 1, 9  # number of pairs, those that may be called different, and those that must be
SMALL, LARGE = 2**16, 2**19  # elements, enough for torch to use several threads
APART_PCT = 15.0  # most that two separate times may differ
SLOWED_US, SLOWED_SHARE = 200.0, 0.05


def loops(settings: Settings) -> list[Finding]:
    """Time loops that end by the same clock."""
    return [known_loop(us, settings.time(busy(us), "cpu")) for us in LOOPS_US]


def known_loop(us: float, row: Mapping[str, Any]) -> Finding:
    """Check the fastest sample in ``row``, of a loop that lasts ``us``."""
    passed = abs(row["min_us"] - us) <= NEAR_US + NEAR_SHARE * us
    found = f"{row['min_us']:.2f} us at best, {row['wall_us']:.2f} us on average"
    return Finding(f"loop of {us:g} us", found, f"best within {NEAR_US:g} us + {100 * NEAR_SHARE:g} %", passed)


def same(settings: Settings) -> list[Finding]:
    """Compare calls with themselves."""
    calls = [gelu(SMALL, "cpu") for _ in range(PAIRS)]
    return [alike(f"A/A, gelu of {SMALL} elements", [compared(settings, "cpu", call, call) for call in calls], MOST)]


def series(settings: Settings) -> list[Finding]:
    """Time a short and a longer call in fresh processes."""
    taken = in_processes(settings, "cpu", (SMALL, LARGE))
    return [separate(f"gelu of {SMALL} and {LARGE} elements: separate times", taken, APART_PCT, earlier("cpu"))]


def slowed(settings: Settings) -> list[Finding]:
    """Compare a loop with a longer one."""
    short, long = busy(SLOWED_US), busy(SLOWED_US * (1 + SLOWED_SHARE))
    pairs = [compared(settings, "cpu", long, short) for _ in range(PAIRS)]
    return [slower(f"loop of {SLOWED_US:g} us", pairs, SLOWED_SHARE, LEAST)]


def busy(us: float) -> Call:
    """Return a loop that ends ``us`` after its start, or at the next reading of the clock."""
    length_ns = round(1e3 * us)

    def loop() -> tuple[Tensor, ...]:
        end = time.perf_counter_ns() + length_ns
        while time.perf_counter_ns() < end:
            pass
        return ()

    return Call(loop)


CPU_CHECKS: Mapping[str, Check] = {
    "loops of known length": loops,
    "equal calls": same,
    "injected slowdown": slowed,
    "separate times": series,
}
