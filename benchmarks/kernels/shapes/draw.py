"""The operations, the shapes drawn for each, and the bars on its kernels. These are declarations, without torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain, zip_longest
from random import Random

import yaml

from benchmarks.common import ROOT

Shape = tuple[int, ...]  # in the order of workload.shape
ODD = 0.4  # share of the sizes that are any integer
NAMED = 4  # one of so many shapes is of a model or of the lecture: conf/shapes
LAYERS = 4  # of an MLP, the default of its YAML
SMALL = 251  # sizes on a CPU are at most this; a prime, so that few shapes become equal


@dataclass(frozen=True)
class Bars:
    """What the ratios of one operation over all shapes must reach, each the peer's time over ours."""

    mean: float  # geometric mean
    worst: float
    fifth: float | None = None  # 5th percentile


@dataclass(frozen=True)
class Op:
    """A workload in one dtype, with the implementations of ours in it: the first is the one that ``main`` is about."""

    workload: str
    dtype: str
    draw: Callable[[Random], Shape]
    least: int  # product of the sizes
    most: int
    ours: tuple[str, ...]
    main: Bars
    best: Bars | None = None  # of the fastest of ours for each shape
    graph: float | None = None  # least mean of torch's time of calls back to back over that of ours as a CUDA graph

    @property
    def name(self) -> str:
        """``matmul-bfloat16``."""
        return f"{self.workload}-{self.dtype}"


def shapes(op: Op, seed: int, count: int, *, small: bool = False) -> list[Shape]:
    """Return ``count`` different shapes: a quarter of them named ones, or fewer if there are not so many.

    The same seed draws the same shapes, and fewer of them are the first of each kind. ``small``: for a CPU.
    """
    chance = Random(f"{seed} {op.name}")
    named = named_shapes(op, chance)[: count // NAMED]
    found = dict.fromkeys(_reduced(shape) if small else shape for shape in named)
    while len(found) < count:
        shape = op.draw(chance)
        if op.least <= math.prod(shape) <= op.most:
            found[_reduced(shape) if small else shape] = None
    return list(found)


def named_shapes(op: Op, chance: Random) -> list[Shape]:
    """Return the shapes in conf/shapes that are as large as those drawn for ``op``, of one set after the other."""
    sets = [[shape for shape in some if op.least <= math.prod(shape) <= op.most] for some in _sets(op.workload)]
    for some in sets:
        chance.shuffle(some)
    chance.shuffle(sets)
    in_turn = chain.from_iterable(zip_longest(*sets))
    return list(dict.fromkeys(shape for shape in in_turn if shape))


@cache
def _sets(workload: str) -> list[list[Shape]]:
    paths = sorted((ROOT / "conf" / "shapes").glob("*.yaml"))
    sets = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in paths]
    return [[tuple(shape) for shape in one[workload]] for one in sets if workload in one]


def _reduced(shape: Shape) -> Shape:
    return tuple(size if size <= SMALL else 1 + size % SMALL for size in shape)


# --- how sizes are drawn ---


def _uniform(chance: Random, least: int, most: int) -> int:
    """Return an integer whose logarithm is uniform."""
    return min(most, int(math.exp(chance.uniform(math.log(least), math.log(most + 1)))))


def _rounded(chance: Random, size: int) -> int:
    """Return ``size`` or, more often, the next round number below: of 64, below 256 of 16, below 16 a power of two."""
    if chance.random() < ODD:
        return size
    step = 64 if size >= 256 else 16 if size >= 16 else 1 << (size.bit_length() - 1)
    return size - size % step


def _sizes(*limits: tuple[int, int]) -> Callable[[Random], Shape]:
    """Return a function that draws a size within each of ``limits``."""
    return lambda chance: tuple(_rounded(chance, _uniform(chance, *limit)) for limit in limits)


def _matrix(elements: tuple[int, int], cols: tuple[int, int]) -> Callable[[Random], Shape]:
    """Return a function that draws the columns of a matrix and, by its number of elements, its rows."""

    def draw(chance: Random) -> Shape:
        width = _rounded(chance, _uniform(chance, *cols))
        count = _uniform(chance, max(width, elements[0]), elements[1])
        return _rounded(chance, count // width), width

    return draw


def _mlp(chance: Random) -> Shape:
    return *_sizes((16, 4096), (64, 4096))(chance), LAYERS  # rows of the input, width


# --- the operations ---

GELU = _matrix((2**10, 2**28), (1, 2**17)), 2**10, 2**28
SOFTMAX = _matrix((2**14, 2**28), (64, 1_500_000)), 2**14, 2**28
PRODUCT = _sizes((1, 8192), (256, 16384), (256, 16384)), 1, 8192 * 16384 * 16384  # m, k, n
FLOAT32_PRODUCT = _sizes((64, 4096), (64, 4096), (64, 4096)), 1, 4096**3
POINTS = _sizes((64, 16384), (64, 16384), (2, 1500)), 1, 16384 * 16384 * 1500
MLP = _mlp, 1, 4096 * 4096 * LAYERS
CUDA = ("triton", "cuda")

_OPS = [
    *(Op("gelu", dtype, *GELU, CUDA, Bars(1.05, 0.97)) for dtype in ("float32", "bfloat16")),
    *(Op("softmax", dtype, *SOFTMAX, CUDA, Bars(1.1, 0.9), Bars(1.5, 0.97)) for dtype in ("float32", "bfloat16")),
    *(Op("matmul", dtype, *PRODUCT, CUDA, Bars(1.1, 0.85, 0.95)) for dtype in ("bfloat16", "float16")),
    Op("matmul", "float32", *FLOAT32_PRODUCT, (*CUDA, "split"), Bars(0.95, 0.8), Bars(1.1, 0.9)),
    Op("cdist", "float32", *POINTS, CUDA, Bars(1.6, 0.95)),
    *(Op("mlp", dtype, *MLP, ("triton",), Bars(1.0, 0.9), graph=3.0) for dtype in ("bfloat16", "float32")),
]
OPS: Mapping[str, Op] = {op.name: op for op in _OPS}
