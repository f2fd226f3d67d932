"""How long a call takes, on a CPU or a GPU. Knows torch alone; this file does not import it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Literal

from runner.experiment.case import Scalar

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Work:
    """What a call has to do at least, whoever does it."""

    flops: int  # floating-point operations of the definition
    bytes_min: int  # each input read once, each output written once
    dtype: str  # of the inputs
    tf32: bool


@dataclass(frozen=True)
class Call:
    """An implementation bound to its inputs. ``run()`` gives the outputs in the order of ``reference``."""

    run: Callable[[], tuple[Tensor, ...]]
    reset: Callable[[], None] | None = None  # puts back, in place, what ``run`` changes for good; None: nothing
    work: Work | None = None  # None: not known, as of a kernel that is no workload's
    judge: Callable[[Sequence[object]], str] | None = None  # outputs → what is wrong with them, empty if nothing
    inputs: tuple[Tensor, ...] = ()  # what ``run`` reads, and what may be moved elsewhere in memory while it is timed

    def restore(self) -> None:
        """As it was before the first ``run``."""
        if self.reset is not None:
            self.reset()


@dataclass(frozen=True)
class TimingSettings:
    """How a call is timed: the fields of ``conf/measure/benchmark.yaml``, which gives their meaning."""

    cold_l2: bool
    instrument: Literal["auto", "graph_timestamps", "stream_timestamps", "cuda_events"]
    captures: Annotated[int, "at least 1"]
    buffer_sets: Annotated[int, "at least 1"]
    cupti_check: bool
    measured_peak: bool
    warmup_s: Annotated[float, "at least 0"]
    samples: Annotated[int, "at least 20"]
    max_s: Annotated[float, "above 0"]
    paired_rounds: Annotated[int, "at least 0"]
    sustained_s: Annotated[float, "at least 0"]
    keep_samples: bool
    target_pct: Annotated[float, "above 0"]
    target_cpu_pct: Annotated[float, "above 0"]

    def prepare(self, device: str) -> None:
        """Measure the timer offset, the unloaded clock and this GPU's peak rates: half a second of the first case."""
        self._on(device).prepare(self)

    def time(self, call: Call, device: str) -> dict[str, Scalar | Sequence[float]]:
        """Return the times of ``call`` on "cpu" or "cuda", its peak memory, and a verdict on them."""
        from runner.timing.call import peak_bytes, remembers, spoil
        from runner.timing.procedure import verdict
        from runner.timing.statistics import batch_means

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
        """Return the instrument and ten batch means in us of each call, sampled in turn. Each comes with its columns.

        None if it is not wanted, or if the calls are too slow for it.
        """
        return self._on(device).compare(calls, self) if self.paired_rounds else None

    def _on(self, device: str) -> Any:  # a module is no type
        return import_module(f"runner.timing.{device}")
