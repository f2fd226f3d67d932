"""``measure=benchmark``: how long one call takes, and how sure that is."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Protocol

from runner.case import Scalar
from runner.measure.statistics import FEWEST, Summary, summarise

STEADY_PCT = 2.0  # warm-up ends when two rounds of it agree this well
LONGEST_WARMUP = 20  # times the least warm-up, after which a call that never settles is timed as it is


class Instrument(Protocol):
    """Something that times single calls."""

    def samples(self, count: int) -> list[float]:
        """``count`` times of one call, in microseconds, in the order they were taken."""

    def columns(self) -> dict[str, Scalar]:
        """What the instrument says of itself."""


@dataclass(frozen=True)
class Benchmark:
    """Warm up until steady, sample, look, and sample once more if the interval is too wide."""

    cold_l2: bool
    warmup_s: Annotated[float, "at least 0"]
    samples: Annotated[int, "at least 20"]
    max_s: Annotated[float, "above 0"]
    target_pct: Annotated[float, "above 0"]

    def measure(self, call: Callable[[], object], device: str) -> dict[str, Scalar]:
        """Times of ``call`` and its peak memory."""
        from runner.measure.memory import peak_bytes

        instrument = self._instrument(call, device)
        started = time.perf_counter()
        cost_s = self._warm_up(instrument)
        warmup_s = time.perf_counter() - started
        summary = self._sample(instrument, cost_s)
        converged = summary.steady and summary.half_width * 100 <= self.target_pct
        return {
            "gpu_us" if device == "cuda" else "wall_us": summary.estimate,
            "low_us": summary.low,
            "high_us": summary.high,
            "median_us": summary.median,
            "q1_us": summary.q1,
            "q3_us": summary.q3,
            "min_us": summary.minimum,
            "samples": summary.count,
            "converged": converged,
            "warmup_s": warmup_s,
            "peak_mem_bytes": peak_bytes(call, device),
            **({} if converged else {"verdict": "not_converged", "verdict_reason": self._why(summary)}),
            **instrument.columns(),
        }

    def _instrument(self, call: Callable[[], object], device: str) -> Instrument:
        if device == "cuda":
            from runner.measure.events import CudaEvents

            return CudaEvents(call, cold_l2=self.cold_l2)
        from runner.measure.wall import PerfCounter

        return PerfCounter(call)

    def _warm_up(self, instrument: Instrument) -> float:
        """Sample in growing rounds until two agree; gives the seconds that a sample costs, flush included."""
        started = time.perf_counter()
        last, count = 0.0, 1
        while True:
            before = time.perf_counter()
            median = sorted(instrument.samples(count))[count // 2]
            now = time.perf_counter()
            cost_s, spent_s = (now - before) / count, now - started
            agree = last and abs(median - last) <= last * STEADY_PCT / 100
            if spent_s >= self.warmup_s and (agree or spent_s >= LONGEST_WARMUP * self.warmup_s):
                return cost_s
            last, count = median, max(1, min(2 * count, int(self.warmup_s / cost_s)))

    def _sample(self, instrument: Instrument, cost_s: float) -> Summary:
        """``samples`` of them, fewer if they would pass ``max_s``; once again as many if that was not enough."""
        affordable = int(self.max_s / cost_s)
        count = max(FEWEST, min(self.samples, affordable // 2))
        times = instrument.samples(count)
        summary = summarise(times)
        if summary.half_width * 100 <= self.target_pct or affordable < 2 * count:
            return summary
        wanted = count * (summary.half_width * 100 / self.target_pct) ** 2
        return summarise(times + instrument.samples(int(max(count, min(wanted, affordable - count)))))

    def _why(self, summary: Summary) -> str:
        half = f"the interval is +-{summary.half_width:.1%} after {summary.count} samples"
        return half if summary.steady else f"the time drifts; {half}"
