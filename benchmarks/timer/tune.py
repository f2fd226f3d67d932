"""Test whether tuning finds the same winner in each process, and how many calls it samples, beside triton.autotune.

    python -m benchmarks.timer.tune [--device cuda] [--processes 20] [--whole 4] [--write]

Each process chooses among the same configurations of the same kernel, ``kernels/add/triton.py``, twice: by
``triton.autotune`` with its own ``do_bench``, and by the race of ``runner tune``, without its confirmation. ``--whole``
of the processes also measure all configurations as a grid does (``runner -m``), to the same ``target_pct``. What is
fastest on average there is taken for the truth. Sampled calls are those timed for ``gpu_us`` and in paired rounds; the
warm-up does not count. On a CPU the calls are additions in parts of several sizes, and medians of 100 ms stand for
``do_bench``.
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
from runner.timing.call import Batches, Call
from runner.timing.statistics import NO_FLOOR, paired
from runner.worker import tidy

COUNT = {"cuda": 2**24, "cpu": 2**14}  # elements of each tensor, float32
BLOCKS, WARPS = (512, 1024, 2048, 4096, 8192), (2, 4, 8)
PARTS = tuple(2**log2 for log2 in range(8, 15))
DO_BENCH_MS = (25, 100)  # warm-up and sampling of do_bench, as triton.autotune calls it
LIMIT_S = 120.0  # time limit of a process
FEWER = 3  # times as many calls are sampled for all in full, at least: a bar

Candidates = Mapping[str, Callable[[], torch.Tensor]]


@dataclass(frozen=True)
class Tuned:
    """What one process found."""

    ours: str
    left: list[str]  # the winner, and what cannot be told from it
    calls: int
    seconds: float
    peer: str
    peer_calls: int
    peer_seconds: float
    whole_calls: int = 0  # of all configurations in full; 0: not measured
    over_first: dict[str, float] = field(default_factory=dict)  # in full: logarithm of each time over that of the first


# --- one process ---


def tune(device: str, settings: Benchmark, whole: int) -> Tuned:
    """Choose as triton.autotune does, and by a race; then measure all in full if ``whole`` is not 0."""
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
    found, calls = measured(candidates, inputs, replace(settings, race=True), device)
    means = {name: fmean(batches) for name, (_, batches, *_) in found.items() if batches}
    left = sorted(means, key=lambda name: means[name])
    seconds, whole_calls, over_first = time.perf_counter() - started, 0, dict[str, float]()
    if whole:
        found, whole_calls = measured(candidates, inputs, settings, device)
        (_, first, *_), *_ = found.values()
        over_first = {name: logarithm(batches, first) for name, (_, batches, *_) in found.items()}
    return Tuned(left[0], left, calls, seconds, peer, peer_calls, peer_seconds, whole_calls, over_first)


def measured(
    candidates: Candidates, inputs: Sequence[torch.Tensor], settings: Benchmark, device: str
) -> tuple[dict[str, Batches], int]:
    """Measure as a run does: each candidate alone, then all in paired rounds. Return the rounds and all sampled calls.

    Raises RuntimeError if the calls are too slow for paired rounds.
    """
    calls = [Call(lambda each=each: (each(),), inputs=tuple(inputs)) for each in candidates.values()]
    figures: list[dict[str, Any]] = [settings.time(call, device) for call in calls]
    found = settings.compare(list(zip(calls, figures, strict=True)), device)
    if found is None:
        raise RuntimeError("the calls are too slow for paired rounds; set measure.benchmark.max_s in conf/ higher")
    alone = sum(one["samples"] * one["calls_per_sample"] for one in figures)
    return dict(zip(candidates, found, strict=True)), alone + sum(count for _, _, count, _ in found)


def logarithm(batches: Sequence[float], first: Sequence[float]) -> float:
    """Return the logarithm of a time over that of the first candidate, from paired rounds."""
    return paired(batches, first, (NO_FLOOR, NO_FLOOR)).log


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
    whole, calls = fmean(one.whole_calls for one in full), fmean(one.calls for one in full)
    everywhere = set[str](names).intersection(*(one.left for one in tuned))
    same, kept = sum(one.ours in everywhere for one in tuned), sum(best in one.left for one in tuned)
    count = len(tuned)
    bars = [
        (
            f"calls sampled in full ({whole:,.0f}) over those of the race in the same processes: {FEWER} or more",
            digits(whole / calls),
            word(whole >= FEWER * calls),
        ),
        (f"the winner is left in every process, in {count} of {count}", f"{same} of {count}", word(same == count)),
        (f"the fastest on average is left, in {count} of {count}", f"{kept} of {count}", word(kept == count)),
    ]
    means = [fmean(getattr(one, name) for one in tuned) for name in ("calls", "seconds", "peer_calls", "peer_seconds")]
    lines = [
        winners("race", [one.ours for one in tuned], log, *means[:2]),
        winners("do_bench", [one.peer for one in tuned], log, *means[2:]),
    ]
    titles = ["", "different winners", "most frequent", "mean loss, %", "largest loss, %", "calls", "s"]
    return "\n\n".join(
        [
            f"{count} processes, {len(names)} configurations; {seconds:.0f} s in all.",
            "## Bars\n\n" + table(["bar", "seen", ""], bars),
            "## Winners\n\n" + table(titles, lines),
            f"Fastest on average of {len(full)} processes that measured all in full: {best}. Left in every process: "
            f"{', '.join(name for name in names if name in everywhere) or 'none'}. Loss: how much longer the winner of "
            "a process takes than the fastest on average, by those full measurements.",
            "## Processes\n\n"
            + table(
                ["process", "winner", "left", "winner left in every process", "do_bench chose", "calls", "in full"],
                (
                    [
                        *(number, one.ours, len(one.left), "yes" if one.ours in everywhere else "no", one.peer),
                        *(f"{one.calls:,}", f"{one.whole_calls:,}" if one.whole_calls else ""),
                    ]
                    for number, one in enumerate(tuned, 1)
                ),
            ),
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
