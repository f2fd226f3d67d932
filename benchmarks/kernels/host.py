"""Show what a call of our kernels costs the caller, beside torch, Liger, QuACK and the launch alone.

    python -m benchmarks.kernels.host [--against CHECKOUT] [--write]

Host time is that of one call of many, back to back, while the GPU has room for all of them. The floor is what such a
call cannot do without: ``torch.empty`` for each tensor it makes, and its compiled kernels launched again by Triton's
launcher, with as many arguments and new descriptors. In CUDA C++ it is the launch by ``cuda_kernel.Kernel``. Pipelined
time is that of one of many calls until the GPU has ended. Ratios are medians over rounds of what is measured in turn.

With ``--against``, the GPU times of all operations are compared with those of another checkout: graphs of calls of
both, replayed in turn.
"""

from __future__ import annotations

import argparse
import inspect
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from math import exp, log, nan
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from benchmarks.common import load_average, page, publish, table
from runner.device import identity
from runner.kernels.unsupported import Unsupported
from runner.records.replaced import replaced
from runner.store import run_folder

CALLS = 50  # back to back: a stream takes about a thousand launches before the caller waits
ROUNDS, WARM = 80, 3
GRAPH_CALLS, REPLAYS = 20, 41  # calls of a graph in the comparison of GPU times, and its replays
HOST_BAR, AUTOGRAD_BAR, GPU_BAR = 1.3, 1.2, 0.01

Call = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    """An operation on inputs of certain shapes."""

    op: str
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def title(self) -> str:
        """The operation, its shapes, dtype and options."""
        sizes = ", ".join("x".join(map(str, shape)) for shape in self.shapes)
        return " ".join([self.op, sizes, self.dtype, *(f"{name}={value}" for name, value in self.options)])

    def inputs(self) -> list[Tensor]:
        """Return random inputs on the GPU."""
        return [torch.rand(shape, device="cuda").to(getattr(torch, self.dtype)) for shape in self.shapes]

    def call(self, impl: str, inputs: Sequence[Tensor], package: str = "runner.kernels") -> Call:
        """Return a call of the implementation. Raises Unsupported where it is missing, also at the first call."""
        try:
            function = getattr(import_module(f"{package}.{self.op}.{impl}"), self.op)
        except ModuleNotFoundError as error:
            raise Unsupported(f"{self.op} has no {impl}") from error
        return lambda: function(*inputs, **dict(self.options))


def square(op: str, n: int, dtype: str) -> Case:
    """Return a product of two matrices [n, n]."""
    return Case(op, ((n, n), (n, n)), dtype)


ROW = ((64, 1024),)
CASES = [
    *(Case(op, shapes, dtype, options)
      for op, shapes, options in (("add", ROW * 2, ()), ("gelu", ROW, (("form", "erf"),)), ("softmax", ROW, ()))
      for dtype in ("float32", "bfloat16", "float16", "float64")),
    *(square("matmul", n, "bfloat16") for n in (256, 1024, 2048, 4096)),
    square("matmul", 1024, "float16"), square("matmul", 1000, "float32"), square("matmul", 1024, "float32"),
    square("matmul", 256, "float64"),
    Case("softmax", ((8, 262144),), "bfloat16"),
    Case("square", ROW, "float32"), Case("transpose", ((256, 1024),), "float32"), Case("cumsum", ROW, "float32"),
    Case("histogram", ROW, "float32", (("bins", 64),)),
    *(Case(op, ((256, 4096),), "float32", (("dim", dim),))
      for op in ("reduce_sum", "reduce_max", "argmax", "norm") for dim in ("all", 0, 1)),
    Case("cdist", ((512, 64), (512, 64)), "float32", (("p", 2),)),
    Case("mlp", ((256, 512), (512, 512), (512,)), "bfloat16", (("activation", "gelu"),)),
]  # fmt: skip
DIFFERENTIABLE = ("gelu", "softmax", "square", "norm", "reduce_sum")
OTHERS = ("torch", "liger", "quack")
PIPELINED = [
    *(square("matmul", n, "bfloat16") for n in (1024, 1536, 2048, 3072, 4096)),
    *(Case(op, ((kib * 512 // cols, cols),), "bfloat16", options)
      for op, options in (("softmax", ()), ("gelu", (("form", "erf"),)))
      for kib, cols in ((64, 1024), (256, 1024), (1024, 1024), (4096, 4096), (16384, 4096))),
]  # fmt: skip


def times_us(calls: Sequence[Call | None], *, pipelined: bool = False) -> list[list[float]]:
    """Return the times in us of each call in all rounds, in which they are called in turn; none for None.

    They are host times, or with ``pipelined`` times until the GPU has ended.
    """
    found: list[list[float]] = [[] for _ in calls]
    for turn in range(-WARM, ROUNDS):
        for times, call in zip(found, calls, strict=True):
            if call is None:
                continue
            torch.cuda.synchronize()
            started = time.perf_counter()
            for _ in range(CALLS):
                call()
            if pipelined:
                torch.cuda.synchronize()
            if turn >= 0:
                times.append((time.perf_counter() - started) / CALLS * 1e6)
    return found


def middle(times: Sequence[float]) -> float:
    """Return the median; nan of nothing."""
    return statistics.median(times) if times else nan


def ratio(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the median of the ratios of each round, since the speed of a host changes during a run."""
    return middle([first / second for first, second in zip(one, other, strict=False)])


def floor_of(call: Call) -> Call:
    """Return a function that allocates and launches what ``call`` does, and returns the last tensor that it made."""
    from triton.runtime.jit import JITFunction

    from runner.kernels.cuda_kernel import Kernel

    made: list[Call] = []
    steps: list[Call] = []
    run, launch, like = JITFunction.run, Kernel.__call__, torch.empty_like

    def seen_run(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        compiled = run(self, *args, grid=grid, warmup=warmup, **options)
        steps.append(_again(self, compiled, grid, args, options))
        return compiled

    def seen_launch(self: Any, *args: Any, **options: Any) -> None:
        launch(self, *args, **options)
        steps.append(lambda: launch(self, *args, **options))

    def seen_of(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def seen(*args: Any, **options: Any) -> Tensor:
            made.append(lambda: make(*args, **options))
            return make(*args, **options)

        return seen

    empty = torch.empty

    def seen_like(x: Tensor) -> Tensor:
        made.append(lambda: empty(*x.shape, dtype=x.dtype, device=x.device))
        return like(x)

    with ExitStack() as stack:
        for owner, name, seen in (
            (JITFunction, "run", seen_run),
            (Kernel, "__call__", seen_launch),
            (torch, "empty", seen_of(torch.empty)),
            (torch, "zeros", seen_of(torch.zeros)),
            (torch, "empty_like", seen_like),
        ):
            stack.enter_context(replaced(owner, name, seen))
        call()

    def floor() -> Any:
        y = [make() for make in made]
        for step in steps:
            step()
        return y[0] if y else None

    return floor


def _again(kernel: Any, compiled: Any, grid: tuple[int, ...], args: Sequence[Any], options: dict[str, Any]) -> Call:
    """Return a launch of the compiled kernel by Triton's launcher, with new descriptors."""
    names = kernel.signature.parameters
    bound = kernel.signature.bind(*args, **{name: value for name, value in options.items() if name in names})
    bound.apply_defaults()
    values = list(bound.arguments.values())
    described = [at for at, value in enumerate(values) if hasattr(value, "block_shape") and hasattr(value, "base")]
    x, y, z = (*grid, 1, 1)[:3]
    head = (compiled.function, compiled.packed_metadata, None, None, None)
    device = torch.cuda.current_device()

    def launch() -> None:
        now = values.copy()
        for at in described:
            old = values[at]
            more = [old.layout] if hasattr(old, "layout") else []
            now[at] = type(old)(old.base, list(old.shape), list(old.strides), list(old.block_shape), *more)
        compiled.run(x, y, z, torch._C._cuda_getCurrentRawStream(device), *head, *now)

    return launch


def calls_of(case: Case, impls: Sequence[str], inputs: Sequence[Tensor]) -> list[Call | None]:
    """Return a call of each implementation that has been called once; None for one that is missing."""
    found: list[Call | None] = []
    for impl in impls:
        try:
            call: Call | None = case.call(impl, inputs)
            call()
        except Unsupported:
            call = None
        found.append(call)
    return found


def host_lines() -> Iterator[list[object]]:
    """Yield the table of host times without autograd."""
    for impl, others in (("triton", OTHERS), ("cuda", ("torch",))):
        for case in CASES:
            call, *rest = calls_of(case, (impl, *others), case.inputs())
            if call is not None:
                times = times_us([call, floor_of(call), *rest])
                ours, floor, *peers = map(middle, times)
                left_out = [""] * (len(OTHERS) - len(others))
                yield [f"{impl} {case.title}", ours, floor, ratio(*times[:2]), *peers, *left_out]


def autograd_lines() -> Iterator[list[object]]:
    """Yield the table of host times of a forward that autograd records."""
    for case in CASES:
        if case.op not in DIFFERENTIABLE:
            continue
        inputs = case.inputs()
        empty = _empty(floor_of(case.call("triton", inputs)))
        inputs[0].requires_grad_()
        call, peer = calls_of(case, ("triton", "torch"), inputs)
        times = times_us([call, lambda of=empty, x=inputs[0]: of.apply(x), peer])
        ours, floor, other = map(middle, times)
        yield [case.title, ours, floor, ratio(*times[:2]), other]


def _empty(floor: Call) -> Any:
    """Return a function for autograd that does nothing else than ``floor``."""

    class Empty(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Any:
            return floor()

        @staticmethod
        def backward(ctx: Any, *dy: Tensor) -> None:
            """Is not called."""

    return Empty


def pipelined_lines() -> Iterator[list[object]]:
    """Yield the table of pipelined times."""
    for case in PIPELINED:
        inputs = case.inputs()
        times = times_us(calls_of(case, ("triton", "cuda", *OTHERS), inputs), pipelined=True)
        yield [case.title, *map(middle, times), ratio(times[0], times[2])]


def other_package(checkout: Path) -> str:
    """Return the name under which the folder ``kernels`` of ``checkout`` can be imported."""
    package = ModuleType("other_kernels")
    package.__path__ = [str(checkout / "kernels")]
    sys.modules[package.__name__] = package
    return package.__name__


def gpu_lines(checkout: Path) -> Iterator[list[object]]:
    """Yield the table of GPU times of this checkout and the other one."""
    package, ratios = other_package(checkout), []
    for impl in ("triton", "cuda"):
        for case in [*CASES, *PIPELINED]:
            inputs = case.inputs()
            try:
                graphs = [graph_of(case.call(impl, inputs, name)) for name in ("runner.kernels", package)]
            except Exception as error:  # each package has an Unsupported of its own
                if type(error).__name__ != "Unsupported":
                    raise
                continue
            new, old = _replayed(graphs)
            ratios.append(new / old)
            yield [f"{impl} {case.title}", new, old, new / old]
    if not ratios:
        raise SystemExit(f"--against {checkout}: give the folder that holds kernels/ of another checkout")
    yield ["geometric mean", "", "", exp(statistics.fmean(map(log, ratios)))]


def graph_of(call: Call) -> torch.cuda.CUDAGraph:
    """Return a graph of ``GRAPH_CALLS`` calls."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(GRAPH_CALLS):
            call()
    return graph


def _replayed(graphs: Sequence[torch.cuda.CUDAGraph]) -> list[float]:
    """Return the median time in us of a call of each graph. They are replayed in turn, and each is first as often."""
    found: list[list[float]] = [[] for _ in graphs]
    for graph in graphs:
        graph.replay()
    for turn in range(REPLAYS):
        for index in sorted(range(len(graphs)), reverse=turn % 2 == 1):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(200_000)  # the host is ahead when the graph begins
            begin.record()
            graphs[index].replay()
            end.record()
            end.synchronize()
            found[index].append(begin.elapsed_time(end) * 1000 / GRAPH_CALLS)
    return [statistics.median(times) for times in found]


def main() -> int:
    """Print the tables; with --write keep them."""
    assert __doc__
    parser = argparse.ArgumentParser(description=inspect.cleandoc(__doc__).splitlines()[0])
    parser.add_argument(
        "--against", type=Path, metavar="CHECKOUT", help="compare the GPU times with another checkout's"
    )
    parser.add_argument("--parts", nargs="*", default=["host", "autograd", "pipelined"], help="which tables; all three")
    parser.add_argument("--write", action="store_true", help="keep the page in benchmarks/results/")
    args = parser.parse_args()
    load = load_average()
    facts: dict[str, Any] = {**run_folder.environment(sys.argv[1:]), "worker": identity.describe()}
    lines: dict[str, tuple[Sequence[str], Callable[[], Iterator[list[object]]]]] = {
        f"host: us of a call; bar {HOST_BAR} x the floor": (("", "ours", "floor", "ratio", *OTHERS), host_lines),
        f"autograd: us of a forward; bar {AUTOGRAD_BAR} x an empty Function around the floor": (
            ("", "ours", "floor", "ratio", "torch"),
            autograd_lines,
        ),
        "pipelined: us of a call": (("", "triton", "cuda", *OTHERS, "triton / torch"), pipelined_lines),
    }
    parts = []
    for title, (columns, rows) in lines.items():
        if title.partition(":")[0] in args.parts:
            with torch.no_grad() if title.startswith(("host", "pipe")) else torch.enable_grad():
                parts.append(f"## {title}\n\n{table(columns, list(rows()))}\n")
    if args.against:
        with torch.no_grad():
            rows_of = list(gpu_lines(args.against))
        title = f"GPU: us of a call, this checkout and {args.against.name}; bar {GPU_BAR:.0%} as a geometric mean"
        parts.append(f"## {title}\n\n{table(('', 'new', 'old', 'new / old'), rows_of)}\n")
    publish("kernels_host", page("Kernels: what a caller waits", "\n".join(parts), facts, load), facts, args.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
