"""``measure=memory``: how much memory each part of a call takes, and which lines of the source allocate it.

Held memory counts from the beginning of the call. On a CPU, memory from before the call that it frees does not count.
"""

from dataclasses import asdict, dataclass, fields
from typing import Annotated

from ...records.case import Scalar
from ...records.columns import Column
from ...timing.call import Call
from .. import SUMMARY, MeasureContext, write_csv
from .allocations import AllocationSite, PartMemory, allocation_sites, memory_summary, most_saved, part_memory

PEAKS = {  # name of a part → column
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
        "byte", "most bytes saved for backward at one time: tensors that the call created, each storage once", "lower"
    ),
    "allocations": Column("", "allocations of memory in one call", "lower"),
    "allocated_bytes": Column("byte", "bytes of all allocations of one call", "lower"),
    "largest_alloc_bytes": Column("byte", "bytes of the largest allocation", "lower"),
}


@dataclass(frozen=True)
class Memory:
    """Peak memory of a call and of its parts, tensors saved for backward, and allocations by line of the source."""

    top: Annotated[int, "at least 1"]
    snapshot: bool
    max_events: Annotated[int, "at least 1"]

    def measure(self, call: Call, context: MeasureContext) -> dict[str, Scalar]:
        """Return bytes above those held before the call; write parts.csv, allocations.csv and summary.txt.

        Three calls are made: for the peak, the allocations and the tensors saved for backward. Raises CannotMeasure.
        """
        from ...timing.peak_memory import peak_bytes
        from .observe import observe, saving

        gpu = context.device == "cuda"
        snapshot = context.folder / SNAPSHOT if gpu and self.snapshot else None
        call.restore()
        peak = peak_bytes(call.run, context.device)
        call.restore()
        seen = observe(call.run, context.device, self.max_events, snapshot)
        call.restore()
        with saving() as saved:
            counted = observe(call.run, context.device, self.max_events)
        parts, sites = part_memory(seen.marks), allocation_sites(seen)
        figures: dict[str, Scalar] = {
            "peak_mem_bytes": peak,
            "saved_bytes": most_saved(saved, {counted.changes[order][0] for order in counted.sources}),
            "allocations": len(seen.sizes),
            "allocated_bytes": sum(seen.sizes),
            "largest_alloc_bytes": max(seen.sizes, default=0),
        }
        if call.inputs:  # empty where memory is short: the call does not hold its inputs then
            storages = [tensor.untyped_storage() for tensor in call.inputs]
            figures["input_bytes"] = sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
        for name, column in PEAKS.items():
            if peaks := [part.peak_bytes for part in parts if part.part.rpartition("/")[2] == name]:
                figures[column] = max(peaks)
        for file, kind, lines in (("parts", PartMemory, parts), ("allocations", AllocationSite, sites)):
            write_csv(context.folder / f"{file}.csv", map(asdict, lines), [column.name for column in fields(kind)])
        text = memory_summary(figures, parts, sites, self.top)
        if not gpu:
            text += f"  no {SNAPSHOT}: torch's viewer only shows memory of GPUs\n"
        elif snapshot:
            text += f"  {SNAPSHOT} opens in the viewer at https://pytorch.org/memory_viz, which does not upload it\n"
        (context.folder / SUMMARY).write_text(text, encoding="utf-8")
        return figures
