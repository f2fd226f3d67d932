"""Time of a call on a CPU or a GPU. Knows torch alone; this file does not import it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Literal

from runner.experiment.case import Scalar

if TYPE_CHECKING:
    from torch import Tensor

Batches = tuple[str, list[float], int]  # instrument, ten batch means in us, and how many calls were timed
RACE_SAMPLES, RACE_WIDER = 20, 6  # of a case in a race: as exact as 20 samples are where 800 reach the target


@dataclass(frozen=True)
class Work:
    """Work that a call cannot avoid, whatever its implementation."""

    flops: int  # floating-point operations of the definition
    bytes_min: int  # each input read once, each output written once
    dtype: str  # type of the inputs
    tf32: bool


@dataclass(frozen=True)
class Expected:
    """The expected value of one output. It is correct if ``|y - value| <= atol + rtol * |value|`` at every element."""

    name: str  # "y", or "grad of w1"
    value: Tensor  # float64, of the output's shape
    atol: float | Tensor  # a number, or a float64 tensor of the output's shape
    rtol: float
    tolerance: str  # the same bound in words, for the row


@dataclass(frozen=True)
class Call:
    """An implementation bound to its inputs. ``run()`` returns the outputs in the order of ``reference``."""

    run: Callable[[], tuple[Tensor, ...]]
    reset: Callable[[], None] | None = None  # restores, in place, what ``run`` changes for good; None: nothing
    work: Work | None = None  # None: not known, such as for a kernel without a workload
    judge: Callable[[Sequence[object]], str] | None = None  # outputs → a sentence about their error; empty if correct
    inputs: tuple[Tensor, ...] = ()  # tensors that ``run`` reads and that may be moved in memory while it is timed

    def restore(self) -> None:
        """Restore the state from before the first ``run``."""
        if self.reset is not None:
            self.reset()


@dataclass(frozen=True)
class TimingSettings:
    """How a call is timed: the fields of ``conf/measure/benchmark.yaml``, which explains them."""

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
    race: bool
    sustained_s: Annotated[float, "at least 0"]
    keep_samples: bool
    target_pct: Annotated[float, "above 0"]
    target_cpu_pct: Annotated[float, "above 0"]

    def prepare(self, device: str) -> None:
        """Measure the timer offset, the unloaded clock and this GPU's peak rates: half a second of the first case."""
        if device == "cuda":
            _on(device).prepare(self)

    def time(self, call: Call, device: str) -> dict[str, Scalar | Sequence[float]]:
        """Return the times of ``call`` on "cpu" or "cuda", its peak memory, and a verdict on them."""
        from runner.timing.call import caches_results, peak_bytes, spoil
        from runner.timing.procedure import verdict
        from runner.timing.statistics import batch_means

        settings = replace(self, target_pct=self.target_cpu_pct) if device == "cpu" else self
        if self.race:  # the rounds decide: a time of its own need not be exact
            settings = replace(settings, samples=RACE_SAMPLES, target_pct=RACE_WIDER * settings.target_pct)
        columns, taken, instrument = _on(device).measure(call, settings)
        wrong = ""
        if call.judge:
            if call.inputs:  # otherwise some outputs may be inputs
                spoil(call)
            wrong = next(filter(None, map(call.judge, instrument.outputs())), "")
            if not wrong and call.inputs and caches_results(call):
                wrong = "the outputs did not change with the inputs: the implementation returns a cached result"
        series = {"batches_us": batch_means(taken.samples_us)}
        if self.keep_samples:
            series["samples_us"] = taken.samples_us
        columns |= verdict(columns, settings.target_pct, wrong)
        return {**columns, "peak_mem_bytes": peak_bytes(call.run, device), **series}

    def compare(self, calls: Sequence[tuple[Call, Mapping[str, Scalar]]], device: str) -> list[Batches] | None:
        """Return the instrument, ten batch means in us and the number of timed calls of each call, from paired rounds.

        ``calls`` are given with their columns. With ``race``, calls shown to be slower than the fastest have no means.
        None if ``paired_rounds`` is 0, or if the calls are too slow.
        """
        return _on(device).compare(calls, self) if self.paired_rounds else None


def _on(device: str) -> Any:  # mypy has no type for a module as an interface
    return import_module(f".{device}", __name__)
