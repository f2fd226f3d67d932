"""``measure=benchmark``: how long one call takes, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Literal

from runner.experiment.case import Scalar
from runner.measure import MeasureContext
from runner.timing.verdict import verdict

if TYPE_CHECKING:
    from runner.models.workload import Call


@dataclass(frozen=True)
class Benchmark:
    """Times of a call: on the GPU with its cache cold and warm, and as its caller sees it; or on the CPU."""

    cold_l2: bool
    instrument: Literal["auto", "graph_timestamps", "stream_timestamps", "cuda_events"]
    captures: Annotated[int, "at least 1"]
    buffer_sets: Annotated[int, "at least 1"]
    cupti_check: bool
    measured_peak: bool
    warmup_s: Annotated[float, "at least 0"]
    samples: Annotated[int, "at least 20"]
    max_s: Annotated[float, "above 0"]
    rounds: Annotated[int, "at least 0"]
    sustained_s: Annotated[float, "at least 0"]
    keep_samples: bool
    target_pct: Annotated[float, "above 0"]
    target_cpu_pct: Annotated[float, "above 0"]

    def prepare(self, device: str) -> None:
        """What the instruments read of nothing, the clock at no load, and the measured_peak: half a second of a first case."""
        self._on(device).prepare(self)

    def measure(self, call: Call, context: MeasureContext) -> dict[str, Scalar | Sequence[float]]:
        """Times of ``call``, its peak memory, and how far to trust them."""
        from runner.timing.outputs import peak_bytes, remembers, spoil
        from runner.timing.statistics import batch_means

        device = context.device
        settings = replace(self, target_pct=self.target_cpu_pct) if device == "cpu" else self
        columns, taken, instrument = self._on(device).measure(call, settings)
        wrong = ""
        if call.judge:
            if call.inputs:  # else some outputs may be inputs, which nobody knows
                spoil(call)
            wrong = next(filter(None, map(call.judge, instrument.outputs())), "")
            if not wrong and call.inputs and remembers(call):
                wrong = "they give what they gave before, although the inputs are others"
        series = {"batches_us": batch_means(taken.samples_us)}
        if self.keep_samples:
            series["samples_us"] = taken.samples_us
        columns |= verdict(columns, settings.target_pct, wrong)
        return {**columns, "peak_mem_bytes": peak_bytes(call.run, device), **series}

    def compare(
        self, calls: Sequence[tuple[Call, Mapping[str, Scalar]]], device: str
    ) -> list[tuple[str, list[float]]] | None:
        """Of each call, which comes with its columns, the instrument and ten batch means in us, taken side by side.

        None if it is not wanted, or if the calls are too slow for it.
        """
        return self._on(device).compare(calls, self) if self.rounds else None

    def _on(self, device: str) -> Any:  # a module is no type
        return import_module(f"runner.timing.{device}")
