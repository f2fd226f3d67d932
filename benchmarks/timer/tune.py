"""Test whether tuning finds the same winner in each process, and how many calls it samples, beside triton.autotune.

    python -m benchmarks.timer.tune [--device cuda] [--processes 20] [--whole 4] [--write]

Each process chooses among the same configurations of the same kernel, ``kernels/add/triton.py``, twice: by
``triton.autotune`` with its own ``do_bench``, and by the halving of ``runner tune``: the paired rounds of its stages,
without the times of single cases and without the confirmation. ``--whole`` of the processes also measure all
configurations in full, to the same interval. What is fastest on average there is taken for the truth. On a CPU the
calls are additions in parts of several sizes, and medians of 100 ms stand for ``do_bench``.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean
from typing import Any

import torch

from benchmarks.common import (
    add_process_options,
    digits,
    fields_of,
    load_average,
    over_processes,
    publish_study,
    table,
    word,
)
from runner.measure.benchmark import Benchmark
from runner.report.tune import STAGES, beaten
from runner.timing import Call
from runner.timing.procedure import side_by_side
from runner.timing.statistics import BATCHES, LEVEL, Ratio, pair_floors, paired, shared_us
from runner.worker import tidy

COUNT = {"cuda": 2**24, "cpu": 2**14}  # elements of each tensor, float32
BLOCKS, WARPS = (512, 1024, 2048, 4096, 8192), (2, 4, 8)
PARTS = tuple(2**log2 for log2 in range(8, 15))
DO_BENCH_MS = (25, 100)  # warm-up and sampling of do_bench, as triton.autotune calls it
LIMIT_S = 120.0  # time limit of a process
MOST_CALLS, LEAST_KEPT = 0.5, 0.95  # the bars

Candidates = Mapping[str, Callable[[], torch.Tensor]]


@dataclass(frozen=True)
class Tuned:
    """What one process found."""

    ours: str
    left: list[str]  # what cannot be told from it
    calls: int
    seconds: float
    peer: str
    peer_calls: int
    peer_seconds: float
    whole_calls: int = 0  # of all configurations in full; 0: not measured
    over_first: dict[str, float] = field(default_factory=dict)  # in full: logarithm of each time over that of the first


class Counted:
    """An instrument that counts its samples."""

    def __init__(self, instrument: Any) -> None:
        self.name, self._instrument, self.count = instrument.name, instrument, 0

    def samples(self, count: int) -> list[float]:
        """Return ``count`` samples in us."""
        taken: list[float] = self._instrument.samples(count)
        self.count += len(taken)
        return taken


# --- one process ---


def tune(device: str, settings: Benchmark, whole: int) -> Tuned:
    """Choose as triton.autotune does, and by halving; then measure all in full if ``whole`` is not 0."""
    tidy()  # as a worker does before its first case
    inputs = tuple(torch.randn(COUNT[device], device=device) for _ in range(2))
    candidates = on_gpu(*inputs) if device == "cuda" else on_cpu(*inputs)
    for each in candidates.values():  # compiled before anything is timed
        each()
    # The peer goes first, since CUPTI and our graphs may slow later launches of the same process.
    started = time.perf_counter()
    peer, peer_calls = autotuned(*inputs) if device == "cuda" else by_medians(candidates)
    peer_seconds = time.perf_counter() - started
    settings.prepare(device)
    started = time.perf_counter()
    left, calls = halve(candidates, inputs, settings, device)
    seconds, full = time.perf_counter() - started, (0, dict[str, float]())
    if whole:
        batches, name, sampled = rounds(candidates, inputs, settings, device)
        full = sampled, {one: ratio.log for one, ratio in over(batches, next(iter(batches)), name).items()}
    return Tuned(left[0], left, calls, seconds, peer, peer_calls, peer_seconds, *full)


def halve(
    candidates: Candidates, inputs: Sequence[torch.Tensor], settings: Benchmark, device: str
) -> tuple[list[str], int]:
    """Return the candidates that are not shown to be slower, the fastest first, and how many calls were sampled."""
    left, calls = list(candidates), 0
    for share in STAGES:
        some = {name: candidates[name] for name in left}
        batches, instrument, sampled = rounds(some, inputs, staged(settings, share), device)
        calls += sampled
        over_first = over(batches, left[0], instrument)
        left.sort(key=lambda name: over_first[name].log)
        slower = beaten(over(batches, left[0], instrument), LEVEL / len(STAGES))
        left = [name for name in left if name not in slower]
        if len(left) == 1:
            break
    return left, calls


def over(batches: Mapping[str, Sequence[float]], base: str, instrument: str) -> dict[str, Ratio]:
    """Return the time of each candidate over that of ``base``."""
    floors, shared = pair_floors(instrument, instrument), shared_us(instrument, instrument)
    return {name: paired(each, batches[base], floors, shared) for name, each in batches.items()}


def staged(settings: Benchmark, share: float) -> Benchmark:
    """Return ``settings`` for a stage, as ``runner.report.tune.staged`` does."""
    if share == 1:
        return settings
    wider = 1 / math.sqrt(share)
    return replace(
        settings,
        paired_rounds=max(BATCHES, round(share * settings.paired_rounds)),
        max_s=share * settings.max_s,
        target_pct=wider * settings.target_pct,
        target_cpu_pct=wider * settings.target_cpu_pct,
    )


def rounds(
    candidates: Candidates, inputs: Sequence[torch.Tensor], settings: Benchmark, device: str
) -> tuple[dict[str, list[float]], str, int]:
    """Return ten batch means of each candidate from paired rounds, the instrument, and the number of samples."""
    calls = [Call(lambda each=each: (each(),), inputs=tuple(inputs)) for each in candidates.values()]
    if device == "cuda":
        from runner.timing import instruments
        from runner.timing.calibration import undisturbed
        from runner.timing.preparation import BufferSets

        sets = BufferSets(inputs, settings.buffer_sets)
        made = [instruments.build("graph_timestamps", call, settings, buffer_sets=sets) for call in calls]
        counted, target = [Counted(one) for one in made], settings.target_pct
        found, _ = undisturbed(lambda: side_by_side(counted, settings.paired_rounds, settings.max_s, target), made)
    else:
        from runner.timing.cpu import PerfCounter, pinned

        counted, target = [Counted(PerfCounter(call.run)) for call in calls], settings.target_cpu_pct
        with pinned(lambda: [one.samples(2) for one in counted]):
            found = side_by_side(counted, settings.paired_rounds, settings.max_s, target, on_cpu=True)
    if found is None:
        raise RuntimeError("the calls are too slow for paired rounds; set measure.benchmark.max_s in conf/ higher")
    means = [means for _, means in found]
    return dict(zip(candidates, means, strict=True)), found[0][0], sum(one.count for one in counted)


def on_gpu(a: torch.Tensor, b: torch.Tensor) -> Candidates:
    """Return our Triton kernel with each configuration, as a call."""
    from runner.kernels.add.triton import add

    return {
        named(block, warps): lambda block=block, warps=warps: add(a, b, BLOCK=block, num_warps=warps)
        for block in BLOCKS
        for warps in WARPS
    }


def named(block: int, warps: int) -> str:
    """Return the name of a configuration."""
    return f"BLOCK={block}, num_warps={warps}"


def autotuned(a: torch.Tensor, b: torch.Tensor) -> tuple[str, int]:
    """Return what triton.autotune chooses for the same kernel, and how many calls it makes for that."""
    import triton
    from triton.testing import do_bench

    from runner.kernels.add import triton as kernels

    calls = 0

    def bench(call: Callable[[], object], quantiles: Sequence[float]) -> Any:
        def counting() -> None:
            nonlocal calls
            calls += 1
            call()

        return do_bench(counting, warmup=DO_BENCH_MS[0], rep=DO_BENCH_MS[1], quantiles=quantiles)

    configs = [triton.Config({"BLOCK": block}, num_warps=warps) for block in BLOCKS for warps in WARPS]
    tuner = triton.autotune(configs, key=["count"], do_bench=bench)(kernels._add)
    y = torch.empty_like(a)
    tuner[lambda meta: (triton.cdiv(a.numel(), meta["BLOCK"]),)](a, b, y, a.numel())
    return named(tuner.best_config.kwargs["BLOCK"], tuner.best_config.num_warps), calls


def on_cpu(a: torch.Tensor, b: torch.Tensor) -> Candidates:
    """Return additions in parts of each size, as calls."""
    y = torch.empty_like(a)

    def parted(size: int) -> torch.Tensor:
        for start in range(0, len(y), size):
            torch.add(a[start : start + size], b[start : start + size], out=y[start : start + size])
        return y

    return {f"parts of {size}": lambda size=size: parted(size) for size in PARTS}


def by_medians(candidates: Candidates) -> tuple[str, int]:
    """Return the candidate with the least median over 100 ms of calls, one candidate after the other, and all calls."""
    medians, calls = {}, 0
    for name, call in candidates.items():
        times: list[float] = []
        ends = time.perf_counter() + DO_BENCH_MS[1] / 1000
        while (began := time.perf_counter()) < ends or not times:
            call()
            times.append(time.perf_counter() - began)
        medians[name], calls = statistics.median(times), calls + len(times)
    return min(medians, key=lambda name: medians[name]), calls


# --- what follows from all processes ---


def report(tuned: Sequence[Tuned], seconds: float) -> str:
    """Return the bars and the tables."""
    full = [one for one in tuned if one.whole_calls]
    names = list(full[0].over_first)
    log = {name: fmean(one.over_first[name] for one in full) for name in names}
    best = min(log, key=lambda name: log[name])
    whole, calls = fmean(one.whole_calls for one in full), fmean(one.calls for one in tuned)
    kept = [best in one.left for one in tuned]
    bars = [
        (
            f"calls sampled, of those of all {len(names)} in full: {100 * MOST_CALLS:g} % or less",
            f"{100 * calls / whole:.0f} %",
            word(calls <= MOST_CALLS * whole),
        ),
        (
            f"the fastest on average is among those left in {100 * LEAST_KEPT:g} %",
            f"{sum(kept)} of {len(kept)}",
            word(fmean(kept) >= LEAST_KEPT),
        ),
    ]
    peer = fmean(one.peer_calls for one in tuned)
    lines = [
        winners("halving, the fastest", [one.ours for one in tuned], log, calls, fmean(one.seconds for one in tuned)),
        winners("do_bench", [one.peer for one in tuned], log, peer, fmean(one.peer_seconds for one in tuned)),
    ]
    titles = ["", "different winners", "most frequent", "mean loss, %", "largest loss, %", "calls", "s"]
    left = fmean(len(one.left) for one in tuned)
    return "\n\n".join(
        [
            f"{len(tuned)} processes, {len(names)} configurations; {seconds:.0f} s in all.",
            "## Bars\n\n" + table(["bar", "seen", ""], bars),
            "## Winners\n\n" + table(titles, lines),
            f"Fastest on average of {len(full)} processes that measured all in full: {best}; these took {whole:,.0f} "
            f"calls each. Left at the end beside the winner, on average: {left - 1:.1f}. Loss: how much longer the "
            "winner of a process takes than the fastest on average, by those full measurements.",
        ]
    )


def winners(title: str, found: Sequence[str], log: Mapping[str, float], calls: float, seconds: float) -> list[object]:
    """Return the line of a way to tune."""
    losses = [100 * math.expm1(log[name] - min(log.values())) for name in found]
    ((_, most),) = Counter(found).most_common(1)
    each = (digits(fmean(losses)), digits(max(losses)), f"{calls:,.0f}", digits(seconds))
    return [title, len(set(found)), f"{most} of {len(found)}", *each]


def main() -> None:
    """Run the processes and print the page; with --write keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_process_options(parser, processes=20)
    parser.add_argument("--whole", type=int, default=4, help="processes that also measure all configurations in full")
    options, load = parser.parse_args(), load_average()
    if options.process is not None:
        settings = Benchmark(**fields_of("measure", "benchmark") | {"measured_peak": False})
        if options.device == "cpu":
            torch.set_num_threads(1)  # more would wait for each other in such short calls
        found = tune(options.device, settings, options.whole)
        print(json.dumps(asdict(found)), flush=True)
        return
    if not 1 <= options.whole <= options.processes:
        parser.error("--whole: at least 1, and at most --processes")
    started = time.perf_counter()
    tuned = [Tuned(**record) for record in processes(options)]
    publish_study("tune", "Tuning in several processes", report(tuned, time.perf_counter() - started), options, load)


def processes(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield what each process found. ``--whole`` of them also measure all configurations in full."""
    return over_processes("benchmarks.timer.tune", options, ("whole",), LIMIT_S)


if __name__ == "__main__":
    main()
