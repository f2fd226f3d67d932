"""Measure how much longer a kernel takes while CUPTI records it, as torch.profiler and nsys do.

    python -m benchmarks.timer.watched [--write]

GPU timestamps time the same call in the same CUDA graphs, alone and while CUPTI records, and CUPTI gives its own time
of the kernel. If the last two agree, the additional time is real kernel time and not an error of CUPTI's clock.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch

from benchmarks.common import digits, load_average, page, publish, table
from runner.device import identity
from runner.kernels.gelu import triton as gelu
from runner.kernels.matmul import triton as matmul
from runner.kernels.softmax import triton as softmax
from runner.store import run_folder
from runner.timing import calibration, cuda, cupti
from runner.timing.preparation import BufferSets, preparation
from runner.timing.statistics import trimmed_mean
from runner.timing.timestamps import GraphTimestamps
from runner.worker import tidy

CAPTURES, WARMUP, SAMPLES = 10, 20, 150
OPS = {
    "gelu": (torch.nn.functional.gelu, lambda x: gelu.gelu(x, form="erf")),
    "softmax": (lambda x: torch.softmax(x, -1), softmax.softmax),
    "matmul": (lambda x: x @ x, lambda x: matmul.matmul(x, x)),
}
SHAPES = [
    *(("gelu", (16384, cols)) for cols in (4096, 16384)),
    *(("softmax", (16384, cols)) for cols in (4096, 16384)),
    ("matmul", (4096, 4096)),
]


@dataclass(frozen=True)
class Seen:
    """Times of one kernel, in us."""

    alone_us: float  # by timestamps
    watched_us: float  # by timestamps, while CUPTI records
    cupti_us: float
    again_us: float  # by timestamps, when CUPTI has stopped


def main() -> None:
    """Run everything and print the page; with --write keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="keep the table in benchmarks/results/")
    options, load = parser.parse_args(), load_average()
    cuda.warm_up()
    lines = []
    for dtype in (torch.float32, torch.bfloat16):
        for op, shape in SHAPES:
            for way, function in zip(("torch", "triton"), OPS[op], strict=True):
                seen = watched(function, torch.randn(shape, device="cuda", dtype=dtype))
                lines.append((f"{op} {shape[0]} x {shape[1]} {str(dtype)[6:]} {way}", *_line(seen)))
                print(*lines[-1], flush=True)
                tidy()
    heads = [
        "kernel",
        "us",
        "timestamps, CUPTI recording",
        "CUPTI",
        "timestamps, afterwards",
        "CUPTI / timestamps, recording",
    ]
    note = (
        "By timestamps alone, in us; the next three over that; and the two clocks beside each other on the same calls."
    )
    body = f"{table(heads, lines)}\n\n{note}"
    facts = {**run_folder.environment(sys.argv[1:]), "worker": identity.describe()}
    publish("watched", page("What being watched costs a kernel", body, facts, load), facts, options.write)


def watched(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> Seen:
    """Time ``function(x)``, which is one kernel, with ten buffer sets and a cold cache."""
    before = preparation(None, cold_l2=True)
    found = cupti.each_kernel(lambda: function(x), before)
    name = max(found, key=lambda kernel: found[kernel][1])
    graphs = GraphTimestamps(
        lambda: function(x),
        before,
        captures=CAPTURES,
        constant_us=calibration.graph_constant_us(cold_l2=True, captures=CAPTURES),
        buffer_sets=BufferSets((x,), CAPTURES),
    )
    graphs.samples(WARMUP)
    alone = graphs.samples(SAMPLES)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        timestamped = graphs.samples(SAMPLES)
        torch.cuda.synchronize()
    seen_us = [record.end - record.start for record in cupti.recorded(profile) if record.name == name]
    return Seen(*(trimmed_mean(times) for times in (alone, timestamped, seen_us, graphs.samples(SAMPLES))))


def _line(seen: Seen) -> tuple[str, ...]:
    over = [f"{us / seen.alone_us:.4f}" for us in (seen.watched_us, seen.cupti_us, seen.again_us)]
    return digits(seen.alone_us), *over, f"{seen.cupti_us / seen.watched_us:.4f}"


if __name__ == "__main__":
    main()
