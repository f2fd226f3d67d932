"""Measure every kernel and tile that matmul in Triton can choose, beside the one that its estimate chooses.

    python -m benchmarks.kernels.choices [--dtype bfloat16] [--write]

The estimate in kernels/matmul/_configurations.py has many figures. Most were found from the times of these shapes on an
H100, of the last twelve on an H200, and there of 90 more random shapes. Those about tiles that programs share and about
rows in two lines of L2 come from 131 other shapes on an H100, the time to add up parts of a sum from 420 more. Those of
the kernel "pointers" and of copies come from 10,000 times of 540 other shapes on an H100, most of which have rows that
are not aligned.

The page shows what a wrong estimate costs: the time of the choice over that of the fastest, and how far estimates are
from measured times. On another GPU it shows whether the figures still hold. Products that copy b first are not
measured. Many processes compile the kernels first.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING

from benchmarks.common import digits, load_average, publish_study, table

if TYPE_CHECKING:
    from runner.kernels.matmul._configurations import Configuration, Precision

Shape = tuple[int, int, int]  # m, k, n
NARROW: list[Shape] = [  # of 16-bit types: skinny, square, deep, flat, odd, and some that fill a wave badly
    (8, 2048, 7168), (33, 3000, 5001), (58, 1216, 1344), (64, 4096, 14336), (96, 8192, 1024), (112, 320, 3648),
    (128, 4096, 4096), (200, 300, 9000), (257, 4096, 4096), (300, 1000, 1000), (512, 512, 512), (700, 5000, 700),
    (1000, 1001, 1003), (1024, 768, 2304), (1024, 1024, 1024), (1500, 2100, 3000), (2000, 700, 900),
    (2048, 2048, 2048), (3000, 256, 3000), (4096, 2048, 128), (4928, 358, 508), (6016, 8768, 3545),
    (200, 2000, 4000), (270, 1088, 1088), (400, 7040, 512), (512, 4096, 4096), (640, 2560, 1920), (768, 3072, 768),
    (1024, 4096, 1024), (1408, 1920, 1920), (1536, 1536, 1536), (2304, 1024, 768), (3072, 768, 4096), (5000, 640, 640),
    (742, 7872, 3008), (831, 11520, 2560), (1024, 3648, 8768), (3456, 11520, 768), (24, 1522, 5376), (602, 317, 10002),
    (1319, 581, 7476), (64, 66, 65),
    (85, 6592, 2688), (448, 512, 4800), (448, 728, 4288), (640, 960, 768), (64, 832, 3200), (4, 1344, 9472),
    (256, 768, 2048), (48, 8192, 3072), (257, 1984, 3712), (2518, 6528, 830), (7552, 2624, 2368),
    (3072, 6080, 384), (1, 730, 1271), (48, 2932, 475), (64, 5691, 5667), (4237, 7168, 640), (1600, 5504, 6400),
    (160, 384, 5977), (2, 900, 1801), (12, 1331, 3003), (184, 4480, 3264), (80, 576, 7616), (3, 4096, 4001),
]  # fmt: skip
WIDE: list[Shape] = [  # of float32
    (64, 4096, 64), (88, 376, 87), (128, 3723, 96), (203, 2432, 64), (263, 1024, 208), (300, 3000, 300),
    (512, 512, 512), (700, 777, 2000), (1000, 1001, 1003), (1024, 256, 1024), (1472, 3275, 640),
    (2048, 2048, 2048), (2500, 130, 1500), (4096, 4096, 512),
]  # fmt: skip
SHAPES = {"bfloat16": NARROW, "float16": NARROW, "float32": WIDE}
SLOW = 3.0  # a choice whose estimate is so many times that of the best is not measured
COMPILERS = min(16, os.cpu_count() or 1)
BRIEF = {"warmup": 1, "rep": 4, "return_mode": "median"}  # of runner.do_bench, in ms


@dataclass(frozen=True)
class Found:
    """The times in us of one shape, by the descriptions of choices, and their estimates."""

    shape: Shape
    torch_us: float
    chosen: str
    chosen_us: float
    measured: Mapping[str, float]
    estimated: Mapping[str, float]

    @property
    def best(self) -> str:
        """The fastest choice."""
        return min(self.measured, key=self.measured.__getitem__)

    @property
    def loss(self) -> float:
        """Time of the choice over that of the fastest."""
        return self.chosen_us / self.measured[self.best]


def choices(shape: Shape, dtype: str, precision: Precision, multiprocessors: int) -> dict[Configuration, float]:
    """Return the configurations for ``shape``, m, k and n, that are worth a measurement, and their estimates in us."""
    import torch

    from runner.kernels.matmul._configurations import ITEMSIZE, hopper_choices, pointers_choices
    from runner.kernels.matmul._operands import crossed
    from runner.kernels.matmul.triton import loads_of

    (m, k, n), every = shape, []
    a, b = (torch.empty(size, dtype=getattr(torch, dtype), device="meta") for size in ((m, k), (k, n)))
    if dtype != "float32":
        across = (False, crossed(b.t(), along_k=False))
        every += hopper_choices(m, n, k, ITEMSIZE[dtype], multiprocessors, across)
    every += pointers_choices(m, n, k, dtype, True, multiprocessors, precision, loads_of(a, b))
    least = min(us for us, _ in every)
    return {how: us for us, how in every if us <= SLOW * least}


def measure(shape: Shape, dtype: str, time_us: Callable[[Callable[[], object]], float]) -> Found:
    """Return what ``time_us`` says of torch, of matmul in Triton and of all its choices for ``shape`` in ``dtype``."""
    import torch

    from runner.kernels.matmul import triton

    m, k, n = shape
    precision: Precision = "tf32x3" if dtype == "float32" else "ieee"
    device, kind = "cuda" if torch.cuda.is_available() else "cpu", getattr(torch, dtype)
    processors = torch.cuda.get_device_properties(0).multi_processor_count if device == "cuda" else 132
    a, b = (torch.randn(size, device=device).to(kind) for size in ((m, k), (k, n)))
    y = torch.empty(m, n, device=device, dtype=kind)
    torch_us = time_us(partial(torch.mm, a, b, out=y))
    chosen_us = time_us(partial(triton.matmul, a, b, out=y))
    chosen = triton.chosen()
    estimated = choices(shape, dtype, precision, processors)
    times = {how: time_us(partial(triton.launch, how, a, b, y, precision=precision)) for how in estimated}
    named = [{str(how): us for how, us in some.items()} for some in (times, estimated)]
    return Found(shape, torch_us, chosen, chosen_us, *named)


def report(found: Sequence[Found]) -> str:
    """Return a table of the shapes, the one with the largest loss first, below two lines about all of them."""
    errors = [math.log(us / one.measured[name]) for one in found for name, us in one.estimated.items()]
    mean = math.exp(fmean(math.log(one.loss) for one in found))
    lines = []
    for one in sorted(found, key=lambda one: -one.loss):
        times = [one.torch_us, one.chosen_us, one.measured[one.best]]
        cells = [f"{one.loss:.3f}", f"{one.torch_us / one.measured[one.best]:.3f}", one.chosen, one.best]
        lines.append(("x".join(map(str, one.shape)), *map(digits, times), *cells))
    titles = ["us", "torch", "chosen", "fastest", "chosen / fastest", "torch / fastest", "chosen", "fastest"]
    return (
        f"{len(found)} shapes, {len(errors)} choices. The time of the choice over that of the fastest: {mean:.3f} as a "
        f"geometric mean, {max(one.loss for one in found):.3f} at most.\n\n"
        f"Estimates are off by a factor of {math.exp(math.sqrt(fmean(error**2 for error in errors))):.2f}, the root of "
        f"the mean square.\n\n{table(titles, lines)}"
    )


def main() -> int:
    """Compile, measure, and print the page; with --write keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=SHAPES, default="bfloat16")
    parser.add_argument("--write", action="store_true", help="keep the page in benchmarks/results/")
    parser.add_argument("--compile", help=argparse.SUPPRESS)  # "2/16": only launch the choices of every 16th shape
    args, load = parser.parse_args(), load_average()
    drawn = SHAPES[args.dtype]
    if args.compile:
        place, count = map(int, args.compile.split("/"))
        for shape in drawn[place::count]:
            measure(shape, args.dtype, once)
        return 0
    words = [sys.executable, "-m", "benchmarks.kernels.choices", *sys.argv[1:], "--compile"]
    compilers = [subprocess.Popen([*words, f"{place}/{COMPILERS}"]) for place in range(COMPILERS)]
    if sum(abs(one.wait()) for one in compilers):
        return 1

    from runner import do_bench

    found = [measure(shape, args.dtype, lambda run: 1e3 * float(do_bench(run, **BRIEF))) for shape in drawn]
    args.device, args.load = "cuda", 0
    publish_study(f"choices_{args.dtype}", f"What matmul in {args.dtype} chooses", report(found), args, load)
    return 0


def once(run: Callable[[], object]) -> float:
    """Compile ``run`` by a call."""
    run()
    return 1.0


if __name__ == "__main__":
    sys.exit(main())
