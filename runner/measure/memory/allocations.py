"""The allocations of a call: in which of its parts, how much at once, and from where in the source.

All bytes of what is held are above what was held when the call began.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from runner.experiment.case import Scalar

OTHERS = ("torch/", "triton/", "runner/", "<")  # frames that are not what a reader looks for
NOWHERE = "(no Python: autograd's own thread)"


@dataclass(frozen=True)
class Mark:
    """A part begins or ends."""

    name: str  # of the part that begins; empty where one ends
    held_bytes: int  # now
    peak_bytes: int  # most since the mark before
    allocations: int  # until now


@dataclass(frozen=True)
class Allocation:
    """One allocation of a call."""

    size_bytes: int
    frames: tuple[str, ...] = ()  # "file:line function", innermost first
    operator: str = ""  # of torch, where that is known
    at_peak: bool = False  # held when the call held most


@dataclass(frozen=True)
class Observed:
    """What a call did, in its order."""

    allocations: Sequence[Allocation]
    marks: Sequence[Mark]
    addresses: frozenset[int] = field(default_factory=frozenset)  # of all allocations


@dataclass(frozen=True)
class Part:
    """A named part of a call: ``step_0/forward/layer_1``. The fields are the columns of parts.csv."""

    part: str
    peak_bytes: int
    begin_bytes: int
    end_bytes: int
    allocations: int


@dataclass(frozen=True)
class Place:
    """A place in the source from which a part allocates. The fields are the columns of allocations.csv."""

    part: str
    where: str
    operator: str
    count: int
    total_bytes: int
    largest_bytes: int
    at_peak_bytes: int
    stack: str


def parts(marks: Sequence[Mark]) -> list[Part]:
    """The parts between ``marks``, in the order in which they begin."""
    found: dict[int, Part] = {}
    names: list[str] = []
    open_parts: list[tuple[int, Mark, int]] = []  # place in the order, its first mark, most bytes so far
    for order, mark in enumerate(marks):
        open_parts = [(number, first, max(most, mark.peak_bytes)) for number, first, most in open_parts]
        if mark.name:
            names.append(mark.name)
            open_parts.append((order, mark, mark.held_bytes))
            found[order] = Part("/".join(names), 0, 0, 0, 0)  # its place in the order
            continue
        number, first, most = open_parts.pop()
        path, count = "/".join(names), mark.allocations - first.allocations
        found[number] = Part(path, most, first.held_bytes, mark.held_bytes, count)
        names.pop()
    return list(found.values())


def peak_of(found: Iterable[Part], name: str) -> int | None:
    """The most that any of the parts called ``name`` reaches; None if there is none."""
    return max((part.peak_bytes for part in found if part.part.rpartition("/")[2] == name), default=None)


def places(seen: Observed) -> list[Place]:
    """The allocations together by part, place and operator: those that hold most at the peak first."""
    together: dict[tuple[str, str, str, str], list[Allocation]] = {}
    for path, one in zip(_paths(seen), seen.allocations, strict=True):
        key = path, where(one.frames), one.operator, " < ".join(one.frames)
        together.setdefault(key, []).append(one)
    found = [
        Place(
            part=path,
            where=place,
            operator=operator,
            count=len(some),
            total_bytes=sum(one.size_bytes for one in some),
            largest_bytes=max(one.size_bytes for one in some),
            at_peak_bytes=sum(one.size_bytes for one in some if one.at_peak),
            stack=stack,
        )
        for (path, place, operator, stack), some in together.items()
    ]
    return sorted(found, key=lambda place: (-place.at_peak_bytes, -place.total_bytes))


def where(frames: Sequence[str]) -> str:
    """The innermost frame that is neither torch's nor the runner's; else the innermost."""
    ours = (frame for frame in frames if not frame.startswith(OTHERS))
    return next(ours, frames[0] if frames else NOWHERE)


def _paths(seen: Observed) -> list[str]:
    """Return the part of the call in which each allocation was made."""
    names: list[str] = []
    paths: list[str] = []
    for mark in seen.marks:
        paths += ["/".join(names)] * (mark.allocations - len(paths))
        names = [*names, mark.name] if mark.name else names[:-1]
    return paths + ["/".join(names)] * (len(seen.allocations) - len(paths))


def held_at_peak(changes: Sequence[tuple[int, int]]) -> set[int]:
    """Which of ``changes``, (address, bytes; below 0 when freed), are allocations held at the highest sum."""
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
    """Most bytes held for backward at one time: of ``saved``, (address, bytes; below 0 when dropped), those ``made``.

    A storage counts once, however often it is saved; parameters and inputs are there before the call, so not made.
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


def summary(figures: Mapping[str, Scalar], found: Sequence[Part], top: Sequence[Place], every: int) -> str:
    """What a person reads first."""
    number = {name: int(value) for name, value in figures.items() if isinstance(value, int)}
    lines = [
        f"  peak {size(number['peak_mem_bytes'])} above what was held before; "
        f"{number['allocations']} allocations, {size(number['allocated_bytes'])} in all, "
        f"the largest {size(number['largest_alloc_bytes'])}; {size(number['saved_bytes'])} saved for backward"
    ]
    if not number["allocations"]:
        lines.append("  the call allocates nothing: a CUDA graph, for one, is replayed in memory of its own")
    if found:
        width = max(len(part.part) for part in found)
        lines.append(f"  {'part':{width}}  {'peak':>10}  {'begins at':>10}  {'ends at':>10}  allocations")
        lines += [
            f"  {part.part:{width}}  {size(part.peak_bytes):>10}  {size(part.begin_bytes):>10}  "
            f"{size(part.end_bytes):>10}  {part.allocations}"
            for part in found
        ]
    if top:
        lines.append(f"  {'at peak':>10}  {'in all':>10}  {'count':>5}  from where")
        lines += [
            f"  {size(place.at_peak_bytes):>10}  {size(place.total_bytes):>10}  {place.count:>5}  "
            + "  ".join(filter(None, [place.where, place.operator, place.part]))
            for place in top
        ]
    if every > len(top):
        lines.append(f"  {every - len(top)} more are in allocations.csv")
    return "\n".join([*lines, "  "])


def size(count: int) -> str:
    """Bytes in binary units."""
    power = min(3, max(0, (abs(count).bit_length() - 1) // 10))
    return f"{count / 1024**power:.4g} {('B', 'KiB', 'MiB', 'GiB')[power]}"
