"""``measure=parts``: the time of each part of a step of training, waits included."""

from dataclasses import dataclass
from statistics import median
from typing import Annotated

from ..records.case import Scalar
from ..records.columns import Column
from ..timing.call import Call
from . import CannotMeasure, MeasureContext

PARTS = ("load", "forward", "backward", "optimizer_step", "zero_grad")
COLUMNS = {f"{part}_us": Column("us", f"{part} in one step of training, waits included", "lower") for part in PARTS} | {
    "step_us": Column("us", "measure=parts: one step, in calls that are not divided into parts", "lower"),
    "parts_pct": Column("%", "all parts of a step together, relative to step_us"),
}


@dataclass(frozen=True)
class Parts:
    """Times of parts, from the begin of each to that of the next."""

    calls: Annotated[int, "at least 1"]

    def measure(self, call: Call, context: MeasureContext) -> dict[str, Scalar]:
        """Return medians of the calls after a first one. Raises CannotMeasure if a call has no such parts."""
        from ..models.parts import PartTimer

        timer = PartTimer(call, PARTS, gpu=context.device == "cuda")
        samples = [timer.sample() for _ in range(1 + self.calls)][1:]
        if not samples[0]:
            raise CannotMeasure("this call has no parts: take a workload that trains, with a backward")
        return {name: median(sample[name] for sample in samples) for name in samples[0]}
