"""``measure=memory``: how much memory each part of a call takes, and which lines of the source allocate it.

All bytes of held memory are above what was held when the call began; on a CPU, without what the call frees of that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Annotated

from runner.experiment.case import Scalar
from runner.experiment.columns import Column
from runner.experiment.results import figure
from runner.measure import SUMMARY, MeasureContext, text_table, write_csv

if TYPE_CHECKING:
    from runner.timing import Call

PEAKS = {  # by the name of a part
    "forward": "peak_forward_bytes",
    "backward": "peak_backward_bytes",
    "optimizer_step": "peak_optimizer_bytes",
}
SNAPSHOT = "snapshot.pickle"
OTHERS = ("torch/", "triton/", "runner/", "<")  # frames that are not the user's code
NOWHERE = "(no Python: autograd's own thread)"

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
        figures: dict[str, Scalar] = {
            "peak_mem_bytes": peak,
            "saved_bytes": most_saved(saved, {again.changes[order][0] for order in again.sources}),
            "allocations": len(seen.sizes),
            "allocated_bytes": sum(seen.sizes),
            "largest_alloc_bytes": max(seen.sizes, default=0),
        }
        if call.inputs:  # empty where memory is short, since the call does not hold them then
            storages = [tensor.untyped_storage() for tensor in call.inputs]
            figures["input_bytes"] = sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
        for name, column in PEAKS.items():
            if peaks := [part.peak_bytes for part in found if part.part.rpartition("/")[2] == name]:
                figures[column] = max(peaks)
        for file, kind, lines in (("parts", Part, found), ("allocations", Place, where)):
            columns = [column.name for column in fields(kind)]
            write_csv(context.folder / f"{file}.csv", columns, map(asdict, lines))
        text = summary(figures, found, where, self.top)
        if not gpu:
            text += f"  no {SNAPSHOT}: torch's viewer shows the memory of GPUs only\n"
        elif snapshot:
            text += f"  {SNAPSHOT} opens in the viewer at https://pytorch.org/memory_viz, which sends it nowhere\n"
        (context.folder / SUMMARY).write_text(text, encoding="utf-8")
        return figures


# Frames of Python, "file:line function", innermost first; and the operator of torch, empty if unknown.
Source = tuple[tuple[str, ...], str]


@dataclass(frozen=True)
class Mark:
    """The beginning or the end of a part."""

    name: str  # of the part that begins; empty at an end
    held_bytes: int  # now
    peak_bytes: int  # since the mark before
    allocations: int  # so far


@dataclass(frozen=True)
class Observed:
    """Allocations, frees and parts of a call, in the order of time."""

    changes: Sequence[tuple[int, int]]  # (address, bytes; negative when freed)
    sources: Mapping[int, Source]  # index of the change → where it was made; of the call's allocations
    marks: Sequence[Mark]

    @property
    def sizes(self) -> list[int]:
        """Bytes of each allocation."""
        return [self.changes[order][1] for order in self.sources]


@dataclass
class Part:
    """A named part of a call: ``step_0/forward/layer_1``. The fields are the columns of parts.csv."""

    part: str
    peak_bytes: int
    begin_bytes: int
    end_bytes: int
    allocations: int


@dataclass(frozen=True)
class Place:
    """A line of the source from which a part allocates. The fields are the columns of allocations.csv."""

    part: str
    where: str
    operator: str
    count: int
    total_bytes: int
    largest_bytes: int
    at_peak_bytes: int
    stack: str


def parts(marks: Sequence[Mark]) -> list[Part]:
    """Return the parts between ``marks``, in the order in which they begin."""
    found: list[Part] = []
    open_: list[Part] = []
    for mark in marks:
        for part in open_:
            part.peak_bytes = max(part.peak_bytes, mark.peak_bytes)
        if mark.name:
            path = f"{open_[-1].part}/{mark.name}" if open_ else mark.name
            open_.append(Part(path, mark.held_bytes, mark.held_bytes, mark.held_bytes, mark.allocations))
            found.append(open_[-1])
        else:
            part = open_.pop()
            part.end_bytes = mark.held_bytes
            part.allocations = mark.allocations - part.allocations
    return found


def places(seen: Observed) -> list[Place]:
    """Return the allocations by part, line and operator; those that hold most at the peak come first."""
    live = held_at_peak(seen.changes)
    groups: dict[tuple[str, str, str, str], list[int]] = {}
    for path, (order, (frames, operator)) in zip(_paths(seen), seen.sources.items(), strict=True):
        groups.setdefault((path, where(frames), operator, " < ".join(frames)), []).append(order)
    found = []
    for (path, place, operator, stack), orders in groups.items():
        sizes = [seen.changes[order][1] for order in orders]
        at_peak = sum(seen.changes[order][1] for order in orders if order in live)
        found.append(Place(path, place, operator, len(sizes), sum(sizes), max(sizes), at_peak, stack))
    return sorted(found, key=lambda place: (-place.at_peak_bytes, -place.total_bytes))


def where(frames: Sequence[str]) -> str:
    """Return the innermost frame of the user's code; without one, the innermost frame."""
    users = (frame for frame in frames if not frame.startswith(OTHERS))
    return next(users, frames[0] if frames else NOWHERE)


def _paths(seen: Observed) -> list[str]:
    """Return the part of the call in which each allocation was made."""
    names: list[str] = []
    paths: list[str] = []
    for mark in seen.marks:
        paths += ["/".join(names)] * (mark.allocations - len(paths))
        names = [*names, mark.name] if mark.name else names[:-1]
    return paths + ["/".join(names)] * (len(seen.sources) - len(paths))


def held_at_peak(changes: Sequence[tuple[int, int]]) -> set[int]:
    """Return which of ``changes``, (address, bytes; negative when freed), are allocations held at the highest sum."""
    held = peak = 0
    at = -1
    for order, (_, size) in enumerate(changes):
        held += size
        if held > peak:
            peak, at = held, order
    live: dict[int, int] = {}
    for order, (address, size) in enumerate(changes[: at + 1]):
        if size > 0:
            live[address] = order
        else:
            live.pop(address, None)
    return set(live.values())


def most_saved(saved: Iterable[tuple[int, int]], made: Collection[int]) -> int:
    """Return the most bytes saved for backward at one time, by ``saved``: (address, bytes; negative when dropped).

    A storage counts once, however often it is saved. Only addresses in ``made`` count: parameters and inputs exist
    before the call.
    """
    times: dict[int, int] = {}
    held = most = 0
    for address, size in saved:
        if address not in made:
            continue
        before = times.get(address, 0)
        times[address] = before + (1 if size > 0 else -1)
        held += size if (before, times[address]) in ((0, 1), (1, 0)) else 0
        most = max(most, held)
    return most


def summary(figures: Mapping[str, Scalar], found: Sequence[Part], where: Sequence[Place], top: int) -> str:
    """Return the text of summary.txt, with ``top`` lines of the source."""
    peak, total, largest, saved = (
        figure(int(figures[name] or 0), "byte")
        for name in ("peak_mem_bytes", "allocated_bytes", "largest_alloc_bytes", "saved_bytes")
    )
    lines = [
        f"  peak {peak} above the memory held before; {figures['allocations']} allocations, {total} in all, "
        f"the largest {largest}; {saved} saved for backward"
    ]
    if not figures["allocations"]:
        lines.append("  the call allocates nothing, like a CUDA graph, which is replayed in memory that it holds")
    if found:
        rows = [["part", "peak", "begins at", "ends at", "allocations"]]
        for part in found:
            sizes = (figure(count, "byte") for count in (part.peak_bytes, part.begin_bytes, part.end_bytes))
            rows.append([part.part, *sizes, str(part.allocations)])
        lines += text_table(rows, left=(0,))
    if where:
        rows = [["at peak", "in all", "count", "from where"]]
        for place in where[:top]:
            source = "  ".join(filter(None, [place.where, place.operator, place.part]))
            sizes = (figure(count, "byte") for count in (place.at_peak_bytes, place.total_bytes))
            rows.append([*sizes, str(place.count), source])
        lines += text_table(rows, left=(3,))
    if len(where) > top:
        lines.append(f"  {len(where) - top} more are in allocations.csv")
    return "\n".join([*lines, ""])
