"""``measure=memory``: where the memory of a call goes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Annotated

from runner.experiment.case import Scalar
from runner.experiment.columns import Column
from runner.measure import SUMMARY, MeasureContext, write_csv
from runner.measure.memory.allocations import Part, Place, most_saved, parts, places, summary

if TYPE_CHECKING:
    from runner.timing import Call

PEAKS = {  # by the name of a part
    "forward": "peak_forward_bytes",
    "backward": "peak_backward_bytes",
    "optimizer_step": "peak_optimizer_bytes",
}
SNAPSHOT = "snapshot.pickle"

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
    """Peaks of a call and of its parts, what it saves for backward, and its allocations by the line that makes them."""

    top: Annotated[int, "at least 1"]
    snapshot: bool
    max_events: Annotated[int, "at least 1"]

    def measure(self, call: Call, context: MeasureContext) -> dict[str, Scalar]:
        """Return bytes above those held before the call; write parts.csv, allocations.csv and summary.txt.

        Three calls are made: one for the peak alone, one whose allocations are recorded, and one that counts what is
        saved for backward. Raises CannotMeasure.
        """
        from runner.measure.memory.observe import observe, saving
        from runner.timing.call import peak_bytes

        gpu = context.device == "cuda"
        snapshot = context.folder / SNAPSHOT if gpu and self.snapshot else None
        call.restore()
        peak = peak_bytes(call.run, context.device)
        call.restore()
        seen = observe(call.run, context.device, self.max_events, snapshot)
        call.restore()
        with saving() as saved:
            again = observe(call.run, context.device, self.max_events)
        found, where = parts(seen.marks), places(seen)
        sizes = [one.size_bytes for one in seen.allocations]
        figures: dict[str, Scalar] = {
            "peak_mem_bytes": peak,
            "saved_bytes": most_saved(saved, again.addresses),
            "allocations": len(sizes),
            "allocated_bytes": sum(sizes),
            "largest_alloc_bytes": max(sizes, default=0),
        }
        if call.inputs:  # empty where memory is short, since the call does not hold them then
            storages = [tensor.untyped_storage() for tensor in call.inputs]
            figures["input_bytes"] = sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
        for name, column in PEAKS.items():
            if peaks := [part.peak_bytes for part in found if part.part.rpartition("/")[2] == name]:
                figures[column] = max(peaks)
        for file, kind, lines in (("parts", Part, found), ("allocations", Place, where)):
            columns = [field.name for field in fields(kind)]
            write_csv(context.folder / f"{file}.csv", columns, map(asdict, lines))
        text = summary(figures, found, where, self.top)
        if not gpu:
            text += f"  no {SNAPSHOT}: torch's viewer shows the memory of GPUs only\n"
        elif snapshot:
            text += f"  {SNAPSHOT} opens in the viewer at https://pytorch.org/memory_viz, which sends it nowhere\n"
        (context.folder / SUMMARY).write_text(text, encoding="utf-8")
        return figures
