"""Timer: settings that time calls on a CPU or a GPU. torch is imported when a call is timed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from ..records.case import Scalar
from .call import Batches, Call
from .settings import TimingSettings

RACE_SAMPLES, RACE_WIDER = 20, 6  # samples of a case in a race, and factor on the target, which takes 800 samples


@dataclass(frozen=True)
class Timer(TimingSettings):
    """Times a call, and several calls in paired rounds."""

    def prepare(self, device: str) -> None:
        """Measure the timer offset, the unloaded clock and this GPU's peak rates, in about half a second."""
        if device == "cuda":
            _on(device).prepare(self)

    def time(self, call: Call, device: str) -> dict[str, Scalar | Sequence[float]]:
        """Return the times of ``call`` on "cpu" or "cuda", its peak memory, and a verdict on them."""
        from .peak_memory import peak_bytes
        from .statistics import batch_means

        columns, samples_us = self.timed(call, device)
        series: dict[str, Sequence[float]] = {"batches_us": batch_means(samples_us)}
        if self.keep_samples:
            series["samples_us"] = samples_us
        return {**columns, "peak_mem_bytes": peak_bytes(call.run, device), **series}

    def timed(self, call: Call, device: str) -> tuple[dict[str, Scalar], Sequence[float]]:
        """Return the times of ``call`` with a verdict on them, and all samples in us.

        The verdict is "wrong" if the timed calls gave wrong outputs, or if the call returns a kept result.
        """
        from . import ranks
        from .kept_result import kept_result
        from .unfinished import unfinished
        from .verdict import verdict

        settings = replace(self, target_pct=self.target_cpu_pct) if device == "cpu" else self
        if self.race:  # the rounds decide, so the separate time need not be exact
            settings = replace(settings, samples=RACE_SAMPLES, target_pct=RACE_WIDER * settings.target_pct)
        columns, measured, instrument = _on(device).measure(call, settings)
        wrong = instrument.judge_outputs()
        if call.judge:
            columns["checked_calls"] = instrument.checks.count
        if not wrong and (kept := kept_result(call)):
            wrong = f"it returns a cached result: {kept}"
        if device == "cpu" and not ranks.current.any(wrong):
            wrong = unfinished(call)
        return ranks.gravest(columns | verdict(columns, settings.target_pct, wrong)), measured.samples_us

    def compare(self, calls: Sequence[tuple[Call, Mapping[str, Scalar]]], device: str) -> list[Batches] | None:
        """Measure ``calls``, given with their columns, in paired rounds.

        Return the instrument, ten batch means in us and the number of timed calls of each call. With ``race``, calls
        shown to be slower than the fastest have no means. None if ``paired_rounds`` is 0, or if the calls are too slow.
        """
        return _on(device).compare(calls, self) if self.paired_rounds else None


def _on(device: str) -> Any:  # mypy has no type for a module as an interface
    return import_module(f".{device}", __package__)
