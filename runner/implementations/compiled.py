"""torch.compile of another implementation, afresh for each case, and never in silence where it did not compile."""

from __future__ import annotations

import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from runner.experiment.schema import choices
from runner.implementations import Implementation, Watch, kernel, names
from runner.implementations.file import File

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Compiled(Implementation):
    """``torch.compile`` with the default backend, Inductor."""

    of: str  # a name, or file.py:function
    mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
    dynamic: bool | None
    fullgraph: bool
    cold: bool

    def __post_init__(self) -> None:
        if self.of == "compiled":
            raise ValueError("of: compiled cannot be compiled again; give another implementation, as in impl.of=naive")
        if ":" in self.of:
            File(self.of)  # raises what is wrong with it
        elif self.of not in names():
            raise ValueError(f"of: no such implementation {self.of!r}; {choices(self.of, names())}")

    def _inner(self) -> Implementation:
        return File(self.of) if ":" in self.of else kernel(self.of)()

    def missing(self, op: str) -> str:
        """Empty if what is to be compiled exists."""
        return self._inner().missing(op)

    def sources(self, op: str) -> list[Path]:
        """Source files of this wrapper and of the implementation to compile."""
        return [*super().sources(op), *self._inner().sources(op)]

    def kept_on_disk(self, op: str) -> bool:
        """Inductor's, unless it is to compile cold."""
        return not self.cold

    def load(self, op: str) -> Callable[..., Tensor]:
        """The compiled function; it compiles when it is first called."""
        import torch
        import torch._inductor.config
        from torch._dynamo import config

        torch._inductor.config.force_disable_caches = self.cold
        for limit in ("fail_on_recompile_limit_hit", "fail_on_cache_limit_hit"):  # the second until torch 2.5
            if hasattr(config, limit):
                setattr(config, limit, True)  # by default torch runs eagerly from then on, and only logs it
        function = _afresh(self._inner().load(op))
        compiled: Callable[..., Tensor] = torch.compile(
            function, mode=self.mode, dynamic=self.dynamic, fullgraph=self.fullgraph
        )
        return compiled

    def untimed(self, op: str) -> str:
        """Why the implementation to compile cannot be timed; empty if it can."""
        return self._inner().untimed(op)

    @contextmanager
    def watching(self, op: str, device: str) -> Iterator[Watch]:
        """Counts compile seconds, graphs and graph breaks, and what fell back to eager."""
        from torch._dynamo.callback import callback_handler
        from torch._dynamo.utils import clear_compilation_metrics, counters

        counters.clear()
        clear_compilation_metrics()  # measure=inspect tells of those of this case
        watch, spans = Watch(), _Spans()
        callback_handler.register_start_callback(spans.start)
        callback_handler.register_end_callback(spans.end)
        try:
            yield watch
        finally:
            callback_handler.remove_start_callback(spans.start)
            callback_handler.remove_end_callback(spans.end)
        breaks = sum(counters["graph_break"].values())
        cached = bool(counters["inductor"]["fxgraph_cache_hit"])
        watch.metrics.update(compile_s=spans.seconds, compile_cached=cached, graph_breaks=breaks)
        if not counters["stats"]["unique_graphs"]:
            watch.fallback = "torch.compile captured no graph: this is eager code"
        elif breaks:
            reason = next(iter(counters["graph_break"])).splitlines()[0]
            watch.fallback = f"torch.compile left the graph in {breaks} places, and ran those eagerly: {reason}"
        elif device == "cpu" and self.mode in ("reduce-overhead", "max-autotune"):
            watch.fallback = f"there are no CUDA graphs on a CPU: mode {self.mode} did what it does without them"
        elif skips := counters["inductor"]["cudagraph_skips"]:
            watch.fallback = (
                f"mode {self.mode} recorded no CUDA graph ({skips} skipped): its kernels were launched one by one"
            )


def _afresh(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``function`` with code of its own: nothing compiled of it for another case serves, or limits, this one."""
    if not isinstance(function, types.FunctionType):
        return function
    code = function.__code__.replace()
    fresh = types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    fresh.__kwdefaults__ = function.__kwdefaults__
    fresh.__dict__.update(function.__dict__)
    return fresh


class _Spans:
    """Seconds between the start and the end of each compilation; torch nests none of them."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._since = 0.0

    def start(self, *_: object) -> None:  # torch passes an argument from 2.7 on
        self._since = time.perf_counter()

    def end(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._since
