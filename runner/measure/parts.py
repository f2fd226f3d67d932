"""``measure=parts``: the time of each part of a step of training, waits included."""

from dataclasses import dataclass
from typing import Annotated

from ..records.case import Scalar
from ..records.columns import Column
from ..timing.call import Call
from . import CannotMeasure, MeasureContext

PHASES = {
    "load": "copy of a batch to the device, or the wait for it",
    "forward": "forward, with the loss",
    "backward": "backward",
    "optimizer_step": "update of the parameters",
    "zero_grad": "clearing the gradients",
}
COLUMNS = {f"{part}_us": Column("us", f"{text}, in one step of training", "lower") for part, text in PHASES.items()} | {
    "step_us": Column("us", "one step of training, in a call that is not divided into parts", "lower"),
    "parts_pct": Column("%", "all parts of a step together, relative to a step of the undivided call before; median"),
}


@dataclass(frozen=True)
class Parts:
    """Times of the parts, from the beginning of each to the beginning of the next.

    At least ``calls`` calls are divided into parts, and as many are not. They go on until ``least_s`` seconds have
    passed.
    """

    calls: Annotated[int, "at least 1"]
    least_s: Annotated[float, "at least 0"]

    def measure(self, call: Call, context: MeasureContext) -> dict[str, Scalar]:
        """Return the figures of ``PartTimer``. Raises CannotMeasure if a call has no parts."""
        from ..models.parts import PartTimer

        figures = PartTimer(call, (*PHASES,), gpu=context.device == "cuda").figures(self.calls, self.least_s)
        if not figures:
            raise CannotMeasure("this call has no parts: take a workload that trains, with a backward")
        return {**figures}
