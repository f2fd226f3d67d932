"""``measure=benchmark``: the time of one call, with its uncertainty."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..records.case import Scalar
from ..timing.call import Call
from ..timing.timer import Timer
from . import MeasureContext


@dataclass(frozen=True)
class Benchmark(Timer):
    """Times of a call: on a GPU with cold and with warm L2 cache, and on the host; or on a CPU."""

    def measure(self, call: Call, context: MeasureContext) -> dict[str, Scalar | Sequence[float]]:
        """Return the times of ``call``, their verdict, and its peak memory."""
        return self.time(call, context.device)
