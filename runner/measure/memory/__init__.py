"""``measure=memory``: where the memory of a call goes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from importlib import import_module
from typing import TYPE_CHECKING, Annotated

from runner import measure
from runner.experiment.case import Scalar
from runner.experiment.columns import Column
from runner.measure import SUMMARY, MeasureContext
from runner.measure.memory.allocations import Part, Place, most_saved, parts, peak_of, places, summary

if TYPE_CHECKING:
    from runner.timing import Call

PEAKS = {  # of the parts called so
    "forward": "peak_forward_bytes",
    "backward": "peak_backward_bytes",
    "optimizer_step": "peak_optimizer_bytes",
}
SNAPSHOT = "snapshot.pickle"
VIEWER = {
    "cuda": f"{SNAPSHOT} opens in the viewer at https://pytorch.org/memory_viz, which sends it nowhere",
    "cpu": f"no {SNAPSHOT}: torch's viewer shows the memory of GPUs alone",
}


COLUMNS: dict[str, Column] = {
    "input_bytes": Column("byte", "measure=memory: bytes of the workload's inputs, parameters included"),
    "peak_forward_bytes": Column("byte", "peak memory of a forward, above what was held before the call", "lower"),
    "peak_backward_bytes": Column("byte", "the same for a backward", "lower"),
    "peak_optimizer_bytes": Column("byte", "the same for an optimizer step", "lower"),
    "saved_bytes": Column(
        "byte",
        "most bytes saved for backward at one time: tensors that the call created, each storage once",
        "lower",
    ),
    "allocations": Column("", "allocations of memory in one call", "lower"),
    "allocated_bytes": Column("byte", "bytes of all allocations of one call", "lower"),
    "largest_alloc_bytes": Column("byte", "bytes of the largest allocation", "lower"),
}


@dataclass(frozen=True)
class Memory:
    """Peaks of a call and of its parts, what it saves for backward, and its allocations by where they are made."""

    top: Annotated[int, "at least 1"]
    snapshot: bool
    max_events: Annotated[int, "at least 1"]

    def measure(self, call: Call, context: MeasureContext) -> dict[str, Scalar]:
        """Bytes above what was held before the call; files ``parts.csv``, ``allocations.csv``, ``summary.txt``.

        Three calls are made: one for the peak alone, one watched, and one in which what is saved is counted.
        """
        from runner.measure.memory.saved import saving
        from runner.timing.call import peak_bytes

        on = import_module(f"runner.measure.memory.{context.device}")
        keep = self.snapshot and context.device == "cuda"
        call.restore()
        peak = peak_bytes(call.run, context.device)
        call.restore()
        seen = on.observe(call.run, self.max_events, context.folder / SNAPSHOT if keep else None)
        call.restore()
        with saving() as saved:
            again = on.observe(call.run, self.max_events, None)
        known = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in call.inputs}
        found, where = parts(seen.marks), places(seen)
        figures: dict[str, Scalar] = {
            "peak_mem_bytes": peak,
            "saved_bytes": most_saved(saved, again.addresses),
            "allocations": len(seen.allocations),
            "allocated_bytes": sum(one.size_bytes for one in seen.allocations),
            "largest_alloc_bytes": max((one.size_bytes for one in seen.allocations), default=0),
        }
        if known:  # not where memory is short, and the call does not hold them
            figures["input_bytes"] = sum(known.values())
        peaks = {column: peak_of(found, name) for name, column in PEAKS.items()}
        figures |= {column: value for column, value in peaks.items() if value is not None}
        for name, kind, lines in (("parts", Part, found), ("allocations", Place, where)):
            columns = [field.name for field in fields(kind)]
            measure.write(context.folder / f"{name}.csv", columns, map(asdict, lines))
        text = summary(figures, found, where[: self.top], len(where))
        told = VIEWER[context.device] if keep or context.device == "cpu" else ""
        (context.folder / SUMMARY).write_text(f"{text}{told}\n", encoding="utf-8")
        return figures
