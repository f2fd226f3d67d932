"""Undo what a file does to its process while it is imported, as a script without a ``__main__`` guard does.

A script also prints, plots and times. What it prints is in the worker's log, and plots open no window.
"""

import ast
import builtins
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from traceback import walk_tb
from types import TracebackType
from typing import Any

from ..records.grouping import reachable
from ..records.replaced import replaced
from ..timing import clock as time
from .arguments import global_names

GUARD = 'if __name__ == "__main__":'

Setting = tuple[Callable[[], Any], Callable[[Any], object]]  # what reads it, and what sets it


@cache
def settings() -> dict[str, Setting]:
    """Return the settings of torch and of this process that later code depends on, by name."""
    import torch

    return {
        "torch.get_num_threads": (torch.get_num_threads, torch.set_num_threads),
        "torch.get_default_dtype": (torch.get_default_dtype, torch.set_default_dtype),
        "torch.get_default_device": (torch.get_default_device, lambda _: torch.set_default_device(None)),
        "torch.is_grad_enabled": (torch.is_grad_enabled, torch.set_grad_enabled),
        "torch.is_anomaly_enabled": (torch.is_anomaly_enabled, torch.set_anomaly_enabled),
        "torch.is_autocast_enabled on the CPU": _autocast("cpu"),
        "torch.is_autocast_enabled on the GPU": _autocast("cuda"),
        "torch.are_deterministic_algorithms_enabled": (
            torch.are_deterministic_algorithms_enabled,
            torch.use_deterministic_algorithms,
        ),
        "torch.backends.mkldnn.enabled": (torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled),
        **_attributes("torch.backends.cudnn", torch.backends.cudnn, "enabled", "benchmark", "deterministic"),
        **_attributes(
            "torch.backends.cuda.matmul",
            torch.backends.cuda.matmul,
            "allow_fp16_reduced_precision_reduction",
            "allow_bf16_reduced_precision_reduction",
        ),
        "the working folder": (os.getcwd, os.chdir),
        "the timer ITIMER_REAL": (lambda: signal.getitimer(signal.ITIMER_REAL)[0] > 0, lambda _: signal.alarm(0)),
        **{
            f"the handler of {number.name}": (partial(signal.getsignal, number), partial(signal.signal, number))
            for number in signal.Signals
        },
    }


def _attributes(path: str, owner: object, *names: str) -> dict[str, Setting]:
    return {f"{path}.{name}": (partial(getattr, owner, name), partial(setattr, owner, name)) for name in names}


def _autocast(device: str) -> Setting:
    import torch

    return partial(torch.is_autocast_enabled, device), partial(torch.set_autocast_enabled, device)


def read(getters: Mapping[str, Setting]) -> dict[str, object]:
    """Return the values of settings, None where reading one raises, as for a working folder that was removed."""
    values: dict[str, object] = {}
    for name, (get, _) in getters.items():
        values[name] = None
        with suppress(RuntimeError, OSError):
            values[name] = get()
    return values


class Notebook:
    """The result of ``get_ipython()`` in an exported notebook. Its commands, such as ``!pip``, do nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **options: None


@contextmanager
def undone(file: Path) -> Iterator[list[str]]:
    """Let ``file`` be imported as if it were run without arguments. Restore what that changes in this process.

    ``settings``, the arguments and the seeds of random numbers are restored. The yielded list then has the names of the
    settings that had changed. Each import draws the same numbers: the reference has the weights of an implementation.
    """
    changed: list[str] = []
    import torch

    known = settings() | {  # the runner itself sets these for each problem
        "torch.get_float32_matmul_precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        **_attributes("torch.backends.cudnn", torch.backends.cudnn, "allow_tf32"),
    }
    before = read(known)
    try:
        with replaced(sys, "argv", [str(file)]), generators_seeded(0):
            yield changed
    finally:
        after = read(known)
        for name, value in before.items():
            if after[name] != value:
                changed.append(name)
                with suppress(RuntimeError, OSError, ValueError, TypeError):  # a signal's in another thread, or in C
                    known[name][1](value)


@cache
def skip_benchmarks() -> None:
    """Let ``run()`` of ``triton.testing.perf_report`` do nothing here: it takes minutes, and writes plots."""
    with suppress(ImportError):
        from triton.testing import Mark

        Mark.run = lambda *args, **options: None


@contextmanager
def generators_seeded(seed: int) -> Iterator[None]:
    """Seed the generators of random numbers of Python, numpy and torch, and put them back to where they were before."""
    import torch

    on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
    with ExitStack() as restore, torch.random.fork_rng(range(torch.cuda.device_count()) if on_gpu else ()):
        restore.callback(random.setstate, random.getstate())
        # Without a GPU, ``manual_seed`` formats a traceback for one that may come, which takes 5 ms.
        (torch if torch.cuda.is_available() else torch.default_generator).manual_seed(seed)
        random.seed(seed)
        with suppress(ImportError):  # without numpy, no file uses it
            import numpy.random

            restore.callback(numpy.random.set_state, numpy.random.get_state())
            numpy.random.seed(seed % 2**32)
        yield


def stopped_at(traceback: TracebackType | None, file: Path) -> int:
    """Return the line of ``file`` at which its import was left with this traceback; 0 if it did not come so far."""
    codes = ((frame.f_code, line) for frame, line in walk_tb(traceback))
    modules = ((os.path.realpath(code.co_filename), line) for code, line in codes if code.co_name == "<module>")
    return next(reversed([line for path, line in modules if path == os.path.realpath(file)]), 0)


def complete_before(line: int, tree: ast.Module, functions: Sequence[str]) -> bool:
    """Return whether ``functions``, and all that they name, were defined before ``line`` and not again after it."""
    before = [global_names(node) for node in tree.body if (node.end_lineno or 0) < line]
    after, _ = global_names(ast.Module(tree.body[len(before) :], []))
    reached = reachable(functions, lambda name: [used for bound, read in before if name in bound for used in read])
    defined = {name for bound, _ in before for name in bound}
    return bool(functions) and defined.issuperset(functions) and reached.isdisjoint(after)


@contextmanager
def own_time() -> Iterator[list[float]]:
    """Yield a list that is filled at the end: seconds in this context, and seconds outside of its import statements."""
    usual, started, imported, depth = builtins.__import__, time.perf_counter(), 0.0, 0

    def timed(*args: Any, **kwargs: Any) -> Any:
        nonlocal imported, depth
        began, depth = time.perf_counter(), depth + 1
        try:
            return usual(*args, **kwargs)
        finally:
            depth -= 1
            imported += (time.perf_counter() - began) * (not depth)

    spent: list[float] = []
    with replaced(builtins, "__import__", timed):
        yield spent
    seconds = time.perf_counter() - started
    spent += seconds, seconds - imported
