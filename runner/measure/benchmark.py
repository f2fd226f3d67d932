"""``measure=benchmark``: how long one call takes, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runner.experiment.case import Scalar
from runner.measure import MeasureContext
from runner.timing import TimingSettings

if TYPE_CHECKING:
    from runner.timing import Call


@dataclass(frozen=True)
class Benchmark(TimingSettings):
    """Times of a call: on a GPU with its L2 cache cold and warm, and as its caller sees it; or on a CPU."""

    def measure(self, call: Call, context: MeasureContext) -> dict[str, Scalar | Sequence[float]]:
        """Return the times of ``call``, its peak memory, and how far to trust them."""
        return self.time(call, context.device)
