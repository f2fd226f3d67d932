"""Memory of a call by its parts and by the lines of the source that allocate."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ...records.case import Scalar
from ...records.figures import counted, figure
from ...records.plain_text import text_table

OTHERS = ("torch/", "triton/", "runner/", "<")  # frames outside of the user's code
NOWHERE = "(no Python: autograd's own thread)"

# Python frames, "file:line function", innermost first; and the operator of torch, empty if unknown.
CallSite = tuple[tuple[str, ...], str]


@dataclass(frozen=True)
class Mark:
    """Beginning or end of a part."""

    name: str  # name of the part that begins; empty at an end
    held_bytes: int  # now
    peak_bytes: int  # since the mark before
    allocations: int  # so far


@dataclass(frozen=True)
class Observed:
    """Allocations, frees and parts of a call, in the order of time."""

    changes: Sequence[tuple[int, int]]  # (address, bytes; negative for a free)
    sources: Mapping[int, CallSite]  # index of an allocation in ``changes`` → its origin
    marks: Sequence[Mark]

    @property
    def sizes(self) -> list[int]:
        """Bytes of each allocation."""
        return [self.changes[order][1] for order in self.sources]


@dataclass
class PartMemory:
    """A named part of a call: ``step_0/forward/layer_1``. The fields are the columns of parts.csv."""

    part: str
    peak_bytes: int
    begin_bytes: int
    end_bytes: int
    allocations: int


@dataclass(frozen=True)
class AllocationSite:
    """A line of the source that allocates in a part. The fields are the columns of allocations.csv."""

    part: str
    where: str
    operator: str
    count: int
    total_bytes: int
    largest_bytes: int
    at_peak_bytes: int
    stack: str


def part_memory(marks: Sequence[Mark]) -> list[PartMemory]:
    """Return the parts between ``marks`` in the order of their beginnings."""
    parts: list[PartMemory] = []
    open_: list[PartMemory] = []
    for mark in marks:
        for part in open_:
            part.peak_bytes = max(part.peak_bytes, mark.peak_bytes)
        if mark.name:
            path = f"{open_[-1].part}/{mark.name}" if open_ else mark.name
            open_.append(PartMemory(path, mark.held_bytes, mark.held_bytes, mark.held_bytes, mark.allocations))
            parts.append(open_[-1])
        else:
            part = open_.pop()
            part.end_bytes = mark.held_bytes
            part.allocations = mark.allocations - part.allocations
    return parts


def allocation_sites(seen: Observed) -> list[AllocationSite]:
    """Group the allocations by part, line and operator, sorted by the memory that they hold at the peak."""
    live = held_at_peak(seen.changes)
    groups: dict[tuple[str, str, str, str], list[int]] = {}
    for path, (order, (frames, operator)) in zip(_paths(seen), seen.sources.items(), strict=True):
        groups.setdefault((path, where(frames), operator, " < ".join(frames)), []).append(order)
    sites = []
    for (path, frame, operator, stack), orders in groups.items():
        sizes = [seen.changes[order][1] for order in orders]
        at_peak = sum(seen.changes[order][1] for order in orders if order in live)
        sites.append(AllocationSite(path, frame, operator, len(sizes), sum(sizes), max(sizes), at_peak, stack))
    return sorted(sites, key=lambda site: (-site.at_peak_bytes, -site.total_bytes))


def where(frames: Sequence[str]) -> str:
    """Return the innermost frame of the user's code; without one, the innermost frame."""
    users = (frame for frame in frames if not frame.startswith(OTHERS))
    return next(users, frames[0] if frames else NOWHERE)


def _paths(seen: Observed) -> list[str]:
    """Return the part of the call in which each allocation was made."""
    names: list[str] = []
    paths: list[str] = []
    for mark in [*seen.marks, Mark("", 0, 0, len(seen.sources))]:
        paths += ["/".join(names)] * (mark.allocations - len(paths))
        names = [*names, mark.name] if mark.name else names[:-1]
    return paths


def held_at_peak(changes: Sequence[tuple[int, int]]) -> set[int]:
    """Return the indices in ``changes`` of the allocations that are held at the peak."""
    held = list(accumulate((size for _, size in changes), initial=0))
    live: dict[int, int] = {}
    for order, (address, size) in enumerate(changes[: held.index(max(held))]):
        if size > 0:
            live[address] = order
        else:
            live.pop(address, None)
    return set(live.values())


def most_saved(saved: Iterable[tuple[int, int]], made: Collection[int]) -> int:
    """Return the largest number of bytes that are saved for backward at one time.

    ``saved`` has an address and bytes, negative when autograd drops the tensor. A storage counts once, however often it
    is saved. Only addresses in ``made`` count, without the parameters and inputs, which exist before the call.
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


def memory_summary(
    figures: Mapping[str, Scalar], parts: Sequence[PartMemory], sites: Sequence[AllocationSite], top: int
) -> str:
    """Return the text of summary.txt, with ``top`` lines of the source."""
    peak, total, largest, saved = (
        figure(int(figures[name] or 0), "byte")
        for name in ("peak_mem_bytes", "allocated_bytes", "largest_alloc_bytes", "saved_bytes")
    )
    lines = [
        f"  peak {peak} above the memory held before; {counted(figures['allocations'], 'allocation')}, {total} in all, "
        f"the largest {largest}; {saved} saved for backward"
    ]
    if not figures["allocations"]:
        lines.append("  the call allocates nothing, like a CUDA graph, which holds its memory between replays")
    rows = [["part", "peak", "begins at", "ends at", "allocations"]]
    for part in parts:
        sizes = (figure(count, "byte") for count in (part.peak_bytes, part.begin_bytes, part.end_bytes))
        rows.append([part.part, *sizes, str(part.allocations)])
    lines += text_table(rows, left=(0,)) if parts else []
    rows = [["at peak", "in all", "count", "from where"]]
    for site in sites[:top]:
        source = "  ".join(filter(None, [site.where, site.operator, site.part]))
        sizes = (figure(count, "byte") for count in (site.at_peak_bytes, site.total_bytes))
        rows.append([*sizes, str(site.count), source])
    lines += text_table(rows, left=(3,)) if sites else []
    if len(sites) > top:
        lines.append(f"  {len(sites) - top} more are in allocations.csv")
    return "\n".join([*lines, ""])
