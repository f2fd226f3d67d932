"""``measure=by_hand``: the time that a simple timing script would print, for studies of its errors."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Annotated

from ..device import tools
from ..records.case import Scalar
from ..records.columns import Column
from ..timing.call import Call
from ..timing.statistics import t_975
from . import CannotMeasure, MeasureContext, result

LIMIT_S = 240.0  # within launcher.measure_limit_s
LOG = "script.log"
COLUMNS = {
    "by_hand_us": Column("us", "mean of the calls that measure=by_hand timed", "lower", "by_hand_pct"),
    "by_hand_pct": Column("%", "half the width of its 95 % interval, as if calls were independent", form="interval"),
    "by_hand_std_us": Column("us", "standard deviation of these calls"),
    "by_hand_first_us": Column("us", "the first of these calls"),
    "by_hand_min_us": Column("us", "the fastest of these calls"),
    "by_hand_max_us": Column("us", "the slowest of these calls"),
}


@dataclass(frozen=True)
class ByHand:
    """Times of the first calls in a new process, by the host's clock."""

    warmup: Annotated[int, "at least 0"]
    trials: Annotated[int, "at least 1"]
    synchronize: bool
    tracer: bool

    def measure(self, call: Call, context: MeasureContext) -> dict[str, Scalar]:
        """Return figures of calls in a new process, since this process is warm. Raises CannotMeasure."""
        script = {"warmup": self.warmup, "synchronize": self.synchronize, "tracer": self.tracer}
        log = context.folder / LOG
        ended = tools.run_tool(context.command(self.trials, script=script), log, LIMIT_S)
        written = result(context.folder)
        if ended.timed_out:
            raise CannotMeasure(f"the calls were not done after {LIMIT_S:g} s; use a smaller workload")
        if "calls_us" not in written:
            raise CannotMeasure(f"the case could not be run by a script: {written.get('error') or f'see {log}'}")
        return self.figures(written["calls_us"])

    def figures(self, calls_us: Sequence[float]) -> dict[str, Scalar]:
        """Return the columns for calls that took ``calls_us`` microseconds each."""
        mean, count = fmean(calls_us), len(calls_us)
        figures: dict[str, Scalar] = {"by_hand_us": mean, "by_hand_first_us": calls_us[0]}
        if count > 1 and mean:
            figures["by_hand_std_us"] = stdev(calls_us)
            figures["by_hand_pct"] = 100 * t_975(count - 1) * stdev(calls_us) / math.sqrt(count) / mean
        return figures | {"by_hand_min_us": min(calls_us), "by_hand_max_us": max(calls_us)}
