"""torch.compile of another implementation, compiled again for each case. Code that runs eagerly is reported."""

import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from ..timing import clock as time
from . import FirstCalls, Function, Wrapper, as_function


@dataclass(frozen=True)
class Compiled(Wrapper):
    """``torch.compile`` with the default backend, Inductor."""

    mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
    dynamic: bool | None
    fullgraph: bool
    cold: bool

    EXCLUDED = ("compiled", "cudagraph")

    def kept_on_disk(self, op: str) -> bool:
        """Return True unless it compiles cold: Inductor keeps compiled code."""
        return not self.cold

    def load(self, op: str) -> Function:
        """Return the compiled function. It compiles when it is first called."""
        import torch
        import torch._inductor.config

        torch._inductor.config.force_disable_caches = self.cold
        function: Function = _copy(as_function(self.inner.load(op)))
        return torch.compile(function, mode=self.mode, dynamic=self.dynamic, fullgraph=self.fullgraph)

    @contextmanager
    def first_calls(self, op: str, device: str) -> Iterator[FirstCalls]:
        """Count seconds of compiling, graphs and graph breaks, and report code that fell back to eager.

        Only in here torch raises at the limit of compiled versions: another function of this process may pass its own.
        """
        from torch._dynamo import config
        from torch._dynamo.callback import callback_handler
        from torch._dynamo.utils import clear_compilation_metrics, counters

        counters.clear()
        clear_compilation_metrics()  # measure=inspect reports the metrics of this case
        report = FirstCalls()
        starts, ends = list[float](), list[float]()  # clock of each compilation, which torch does not nest

        def start(*_: object) -> None:  # torch passes an argument from 2.7 on
            starts.append(time.perf_counter())

        def end(*_: object) -> None:
            ends.append(time.perf_counter())

        callback_handler.register_start_callback(start)
        callback_handler.register_end_callback(end)
        limits = "fail_on_recompile_limit_hit", "fail_on_cache_limit_hit"  # the first since torch 2.7
        try:  # by default torch runs eagerly past the limit, and only logs it
            with config.patch({limit: True for limit in limits if hasattr(config, limit)}):
                yield report
        finally:
            callback_handler.remove_start_callback(start)
            callback_handler.remove_end_callback(end)
        breaks = sum(counters["graph_break"].values())
        cached = bool(counters["inductor"]["fxgraph_cache_hit"])
        report.metrics.update(compile_s=sum(ends) - sum(starts), compile_cached=cached, graph_breaks=breaks)
        if not counters["stats"]["unique_graphs"]:
            report.fallback = "torch.compile captured no graph: this is eager code"
        elif breaks:
            reason = next(iter(counters["graph_break"])).splitlines()[0]
            report.fallback = f"torch.compile left the graph in {breaks} places, which ran eagerly: {reason}"
        elif device == "cpu" and self.mode in ("reduce-overhead", "max-autotune"):
            report.fallback = f"mode {self.mode} ran without CUDA graphs, which a CPU does not have"
        elif skips := counters["inductor"]["cudagraph_skips"]:
            skipped = f"recorded no CUDA graph ({skips} skipped)"
            report.fallback = f"mode {self.mode} {skipped}: its kernels were launched one by one"


def _copy(function: types.FunctionType) -> types.FunctionType:
    """Return ``function`` with a new code object, since torch.compile caches and limits by code object."""
    code, closure = function.__code__.replace(), function.__closure__
    copy = types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__, closure)
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__dict__.update(function.__dict__)
    return copy
