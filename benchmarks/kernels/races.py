"""The races: workloads, sizes and bars. These are declarations, without torch.

A race is a workload of one size. The experiments of ``EXPERIMENTS`` have its implementations. One of them is ``copy``,
which moves the least bytes of the workload: each input is read once, each output is written once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

COPY = "copy"
READ = "the read rate"  # as a peer: the highest rate, in bytes that must be moved, of any kernel on the same page


@dataclass(frozen=True)
class Bar:
    """``ours`` is at least ``least`` times as fast as the fastest of ``peers``. ``beyond`` is a more ambitious goal."""

    ours: str
    peers: tuple[str, ...]
    least: float
    beyond: float | None = None


@dataclass(frozen=True)
class Race:
    """A workload of one size, and the bars on its implementations, which have the names of the runner's table."""

    op: str
    fields: Mapping[str, Any]  # a race without a pass is one of the forward
    bars: Sequence[Bar] = ()
    group: str = ""  # the group of a ``MeanBar``
    latency: bool = False  # compare the latency of the caller instead of the GPU time

    @property
    def title(self) -> str:
        """The op and the fields of this size."""
        return f"{self.op} " + " ".join(f"{name}={value}" for name, value in self.fields.items())


@dataclass(frozen=True)
class MeanBar:
    """A bar on the speed-ups of ``ours`` over ``peer`` in all races of ``group``: geometric mean, and minimum."""

    group: str
    ours: str
    peer: str
    mean: float
    worst: float


def gelu() -> Iterator[Race]:
    """Yield the forward in three dtypes, and the backward in bfloat16."""
    bars = Bar("triton", (COPY,), 0.98), Bar("cuda", (COPY,), 0.98), Bar("cuda", ("triton",), 0.97)
    for dtype in ("float32", "bfloat16", "float16"):
        yield Race("gelu", {"rows": 16384, "cols": 16384, "dtype": dtype}, bars)
    fields = {"rows": 16384, "cols": 16384, "dtype": "bfloat16", "pass": "bwd"}
    yield Race("gelu", fields, [Bar("triton", (COPY,), 1.0)])


NARROW = [  # rows, cols, dtype, share of copy
    (131072, 1024, "bfloat16", 0.97),
    (32768, 4096, "bfloat16", 0.96),
    (16384, 16384, "bfloat16", 0.96),
    (16384, 16384, "float32", 0.98),
]
WIDE = [
    (1024, 131072, "float32", 0.93),
    (512, 262144, "float32", 0.93),
    (128, 1048576, "float32", 0.92),
    (1024, 131072, "bfloat16", 0.91),
    (512, 262144, "bfloat16", 0.91),
    (128, 1048576, "bfloat16", 0.91),
]
BESIDE_QUACK = (64, 256, 1024, 4096, 16384, 65536, 131072, 262144)  # columns


def softmax() -> Iterator[Race]:
    """Yield rows that fit into the registers of one, two and many multiprocessors, a backward, and races with QuACK."""
    for rows, cols, dtype, share in NARROW:
        fields = {"rows": rows, "cols": cols, "dtype": dtype}
        bars = [Bar("triton", (COPY,), share), Bar("cuda", (COPY,), share), Bar("cuda", ("triton",), 0.99)]
        yield Race("softmax", fields, bars)
    fields = {"rows": 4096, "cols": 32768, "dtype": "bfloat16"}
    yield Race("softmax", fields, [Bar("cuda", (COPY,), 0.94, 0.97)])
    for rows, cols, dtype, share in WIDE:
        fields = {"rows": rows, "cols": cols, "dtype": dtype}
        bars = [Bar("cuda", (COPY,), share, 0.97)]
        if dtype == "bfloat16":
            bars.append(Bar("cuda", ("torch", "compiled"), 2.0))
        yield Race("softmax", fields, bars)
    fields = {"rows": 16384, "cols": 16384, "dtype": "bfloat16", "pass": "bwd"}
    yield Race("softmax", fields, [Bar("triton", ("compiled",), 0.99)])
    for cols in BESIDE_QUACK:
        fields = {"rows": 2**26 // cols, "cols": cols, "dtype": "bfloat16"}
        yield Race("softmax", fields, [Bar("cuda", ("quack",), 1.0)])


SHAPES = [  # m, k, n
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (16384, 16384, 16384),
    (4096, 4096, 14336),
    (4096, 14336, 4096),
    (8192, 1024, 8192),
    (16384, 5120, 1280),
    (16384, 1280, 5120),
    (4096, 11008, 4096),
    (4096, 4096, 11008),
    (2048, 8192, 28672),
    (4096, 4096, 128256),
]


def matmul() -> Iterator[Race]:
    """Yield large, small and skinny products, float8, and float32 from float16 halves."""
    for dtype in ("bfloat16", "float16"):
        for m, k, n in SHAPES:
            yield _product(m, k, n, dtype, group=f"{dtype} large")
        for size in (1024, 2048):
            yield _product(size, size, size, dtype, Bar("triton", ("torch",), 1.0, 1.05))
    for m in (1, 16):
        yield _product(m, 8192, 8192, "bfloat16", Bar("triton", ("torch",), 1.0), Bar("triton", (COPY,), 0.95))
    yield _product(128, 8192, 8192, "bfloat16", Bar("triton", ("torch",), 0.97))
    yield _product(8192, 8192, 8192, "float8_e4m3fn", Bar("triton", ("torch",), 1.01))
    yield _product(4096, 4096, 4096, "float32", Bar("split", ("torch",), 3.0))


def _product(m: int, k: int, n: int, dtype: str, *bars: Bar, group: str = "") -> Race:
    return Race("matmul", {"m": m, "k": k, "n": n, "dtype": dtype}, bars, group)


POINTS = [  # points, coordinates, times as fast, tried for
    (2048, 2048, 3.5, None),
    (8192, 2048, 3.8, None),
    (16384, 64, 4.5, 5.0),
    (8192, 128, 4.0, 5.0),
]


def cdist() -> Iterator[Race]:
    """Yield points with many coordinates and with few."""
    for points, d, least, beyond in POINTS:
        fields = {"n": points, "m": points, "d": d, "dtype": "float32"}
        yield Race("cdist", fields, [Bar("triton", ("torch",), least, beyond)])


def mlp() -> Iterator[Race]:
    """Yield two MLPs that launching dominates, by caller latency, and one that arithmetic dominates."""
    eager = Bar("cudagraph", ("torch",), 9.0)
    graphs = Bar("cudagraph", ("compiled(mode=reduce-overhead)",), 4.0)
    for dim, layers, steps, bars in ((256, 4, 2, [eager]), (128, 16, 5, [eager, graphs])):
        fields = {"dim": dim, "layers": layers, "batch": dim, "steps": steps, "dtype": "float32", "pass": "fwd_bwd"}
        yield Race("mlp", fields, bars, latency=True)
    fields = {"dim": 4096, "layers": 8, "batch": 4096, "steps": 1, "dtype": "bfloat16", "pass": "fwd_bwd"}
    peers = ("torch", "compiled(mode=default)", "compiled(mode=max-autotune-no-cudagraphs)")
    yield Race("mlp", fields, [Bar("triton", peers, 1.06, 1.12)])


def reduce_sum() -> Iterator[Race]:
    """Yield sums of all elements, of rows and of columns, from a launch that is mostly latency to 1 GiB."""
    yield from _reductions("reduce_sum")


def reduce_max() -> Iterator[Race]:
    """Yield the same sizes as ``reduce_sum``."""
    yield from _reductions("reduce_max")


def argmax() -> Iterator[Race]:
    """Yield the same sizes as ``reduce_sum``."""
    yield from _reductions("argmax")


def norm() -> Iterator[Race]:
    """Yield the same sizes as ``reduce_sum``."""
    yield from _reductions("norm")


def _reductions(op: str) -> Iterator[Race]:
    for dtype in ("float32", "bfloat16"):
        for dim in ("all", 1, 0):
            for side in (1024, 4096, 8192, 16384):
                fields = {"rows": side, "cols": side, "dim": dim, "dtype": dtype}
                peer = Bar("triton", ("torch", "compiled"), 0.99, 1.0)
                yield Race(op, fields, [peer, Bar("triton", (READ,), 0.99)] if side >= 8192 else [peer])


def transpose() -> Iterator[Race]:
    """Yield square matrices in two dtypes, and one whose sizes are odd."""
    for dtype in ("float32", "bfloat16"):
        for side in (4096, 8191, 16384):
            fields = {"rows": side, "cols": side, "dtype": dtype}
            yield Race("transpose", fields, [Bar("triton", (COPY,), 0.97)] if side == 16384 else [])


def attention() -> Iterator[Race]:
    """Yield causal forwards and backwards of 16384 positions, as several short sequences and as a long one."""
    peers = ("torch", "cudnn")  # on Hopper, other backends of torch take twice as long
    for pass_, least, beyond in (("fwd", 0.85, 1.0), ("bwd", 0.75, 1.0)):
        for d in (64, 128):
            for length in (2048, 4096, 8192, 16384):
                sizes = {"batch": 16384 // length, "heads": 16, "length": length, "d": d}
                fields = {**sizes, "causal": True, "dtype": "bfloat16", "pass": pass_}
                yield Race("attention", fields, [Bar("triton", peers, least, beyond)])


def histogram() -> Iterator[Race]:
    """Yield 256 bins of few and of many numbers."""
    for elements in (2**20, 2**26):
        fields = {"elements": elements, "bins": 256, "dtype": "float32"}
        yield Race("histogram", fields, [Bar("cuda", ("torch",), 3.0)] if elements > 2**20 else [])


PARAMETERS = [  # layers, dim, kv, hidden, vocab: 147 small ones | a small model, twice | a layer of Llama 3 8B
    ((16, 64, 64, 256, 1000), "float32"),
    ((12, 768, 768, 3072, 10000), "float32"),
    ((12, 768, 768, 3072, 10000), "bfloat16"),
    ((1, 4096, 1024, 14336, 1), "float32"),
]


def adamw() -> Iterator[Race]:
    """Yield a list of small parameters, which launches dominate, and three that memory dominates."""
    for sizes, dtype in PARAMETERS:
        fields = dict(zip(("layers", "dim", "kv", "hidden", "vocab"), sizes, strict=True)) | {"dtype": dtype}
        yield Race("adamw", fields, [Bar("triton", (COPY,), 0.95)] if sizes[1] >= 768 else [], group="adamw")


NORMALIZED = [(65536, 1024), (16384, 4096), (8192, 8192), (4096, 16384)]  # rows, cols
LOGITS = [(65536, 1000), (8192, 32768), (4096, 50257), (2048, 128256)]  # rows, classes


def layernorm() -> Iterator[Race]:
    """Yield the forward, and the forward with the gradients of x, weight and bias."""
    yield from _passes("layernorm", "cols", NORMALIZED, 0.95)


def rmsnorm() -> Iterator[Race]:
    """Yield the same sizes as ``layernorm``."""
    yield from _passes("rmsnorm", "cols", NORMALIZED, 0.95)


def cross_entropy() -> Iterator[Race]:
    """Yield the forward, and the forward with the gradient of the logits."""
    yield from _passes("cross_entropy", "vocab", LOGITS)


LAYERS = [(1, 4096, 14336), (16, 8192, 8192), (64, 8192, 8192)]  # tokens, features in and out


def linear_int8() -> Iterator[Race]:
    """Yield a weight with a scale a row and with groups, for one token and for some, beside the weight in bfloat16."""
    for group in (0, 128):
        for m, k, n in [(1, 8192, 8192), *LAYERS]:
            bars = [Bar("triton", ("unquantized",), 1.7)] if (m, k, n) == (1, 8192, 8192) else []
            yield Race("linear_int8", {"m": m, "k": k, "n": n, "group": group, "dtype": "bfloat16"}, bars)


CENTRES = [(16384, 1024, 64), (65536, 256, 64), (16384, 8192, 256)]  # points, centres, coordinates


def nearest() -> Iterator[Race]:
    """Yield centres of k-means and of codebooks."""
    for dtype in ("float32", "bfloat16"):
        for n, m, d in CENTRES:
            bars = [Bar("triton", ("torch",), 4.0)] if (n, m, d) == CENTRES[0] else []
            yield Race("nearest", {"n": n, "m": m, "d": d, "dtype": dtype}, bars)


def _passes(op: str, name: str, sizes: Sequence[tuple[int, int]], share: float | None = None) -> Iterator[Race]:
    """Yield races of a group for each pass; ``share`` of the copy that the forward reaches."""
    for pass_ in ("fwd", "fwd_bwd"):
        bars = [Bar("triton", (COPY,), share)] if share and pass_ == "fwd" else []
        for rows, length in sizes:
            fields = {"rows": rows, name: length, "dtype": "bfloat16", "pass": pass_}
            yield Race(op, fields, bars, group=f"{op} {pass_}")


EXPERIMENTS = {  # of conf/experiment beside this file, by op: their cases are the races, and a few more
    "gelu": ("races_gelu", "races_backward"),
    "softmax": ("races_softmax", "races_backward", "races_quack"),
    "matmul": ("races_matmul", "races_precision"),
    "cdist": ("races_cdist",),
    "mlp": ("races_mlp", "races_latency"),
    **dict.fromkeys(("reduce_sum", "reduce_max", "argmax", "norm"), ("races_reductions",)),
    "transpose": ("races_transpose",),
    "histogram": ("races_histogram",),
    "attention": ("races_attention",),
    "adamw": ("races_adamw",),
    **dict.fromkeys(("layernorm", "rmsnorm"), ("races_norms",)),
    "cross_entropy": ("races_cross_entropy",),
    "linear_int8": ("races_linear_int8",),
    "nearest": ("races_nearest",),
}
OPS = {
    "gelu": gelu,
    "softmax": softmax,
    "matmul": matmul,
    "cdist": cdist,
    "mlp": mlp,
    "reduce_sum": reduce_sum,
    "reduce_max": reduce_max,
    "argmax": argmax,
    "norm": norm,
    "transpose": transpose,
    "histogram": histogram,
    "attention": attention,
    "adamw": adamw,
    "layernorm": layernorm,
    "rmsnorm": rmsnorm,
    "cross_entropy": cross_entropy,
    "linear_int8": linear_int8,
    "nearest": nearest,
}
MEAN_BARS = [
    MeanBar("bfloat16 large", "triton", "torch", mean=1.05, worst=0.97),
    MeanBar("adamw", "triton", "compiled", mean=1.0, worst=0.95),
    MeanBar("float16 large", "triton", "torch", mean=1.0, worst=0.97),
    *(
        MeanBar(f"{op} {pass_}", "triton", "compiled", mean=1.0, worst=0.95)
        for op in ("layernorm", "rmsnorm", "cross_entropy")
        for pass_ in ("fwd", "fwd_bwd")
    ),
]
