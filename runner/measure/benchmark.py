"""``measure=benchmark``: how long one call takes, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Literal

from runner.case import Scalar
from runner.measure.verdict import verdict

if TYPE_CHECKING:
    from models.workload import Call


@dataclass(frozen=True)
class Benchmark:
    """Times of a call: on the GPU with its cache cold and warm, and as its caller sees it; or on the CPU."""

    cold_l2: bool
    instrument: Literal["auto", "stamped_graphs", "stamped_stream", "cuda_events"]
    captures: Annotated[int, "at least 1"]
    witness: bool
    warmup_s: Annotated[float, "at least 0"]
    samples: Annotated[int, "at least 20"]
    max_s: Annotated[float, "above 0"]
    target_pct: Annotated[float, "above 0"]
    target_cpu_pct: Annotated[float, "above 0"]

    def measure(self, call: Call, device: str) -> dict[str, Scalar]:
        """Times of ``call``, its peak memory, and how far to trust them. ``device`` is "cpu" or "cuda"."""
        from runner.measure.memory import peak_bytes

        settings = replace(self, target_pct=self.target_cpu_pct) if device == "cpu" else self
        columns: dict[str, Scalar] = import_module(f"runner.measure.{device}").measure(call, settings)
        return columns | verdict(columns, settings.target_pct) | {"peak_mem_bytes": peak_bytes(call.run, device)}
