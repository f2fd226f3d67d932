"""Who is fastest at each problem, by how much, and where along the swept sizes that changes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.experiment.case import CaseRecord, Scalar
from runner.experiment.results import figure
from runner.experiment.schema import BadInput
from runner.report import terminal
from runner.report.derive import OPPOSITE, Line, Names, Run, may_win
from runner.report.formats import Sheet
from runner.report.terminal import FILE_WIDTH, MARKS, TIED

HEADS = ("problem", "fastest", "time", "ahead by", "95 % interval", "of the next", "conclusion")
NONE = "none is correct and timed"


@dataclass(frozen=True)
class Leader:
    """The fastest implementation of a problem, and the next one."""

    case: CaseRecord  # of the problem
    fastest: Sequence[str] = ()  # labels: the fastest first, then those tied with it
    time_us: float | None = None
    next: str = ""
    ahead: float | None = None  # the next one's time over the fastest's
    low: float | None = None  # ends of its 95 % interval
    high: float | None = None
    conclusion: str = ""  # how the fastest is compared to the next: faster | same | unclear; "" if not known


def leaders(run: Run, lines: Sequence[Line]) -> list[Leader]:
    """Return the leader of each problem of ``lines``. Raises BadInput if no case is correct and timed."""
    problems: dict[str, list[Line]] = {}
    for line in lines:
        problems.setdefault(line.row.case.problem, []).append(line)
    found = [_leader(some, run.names) for some in problems.values()]
    if not any(leader.fastest for leader in found):
        raise BadInput(f"{run.folder}: no case is correct and timed, so none is the fastest; leave out --fastest")
    return found


def _leader(lines: Sequence[Line], names: Names) -> Leader:
    case = lines[0].row.case
    rivals = [line for line in lines if may_win(line.row)]
    if not (best := next((line for line in rivals if line.winner), None)):
        return Leader(case)
    others = sorted((line for line in rivals if line is not best), key=lambda line: _behind(line, best))
    tied = [line for line in (best, *others) if line is best or line.fastest == "tied"]
    found: dict[str, Any] = {"fastest": [names.impl(line.row.case) for line in tied], "time_us": best.time_us}
    if others:
        second = others[0]
        found |= {"next": names.impl(second.row.case), "ahead": math.exp(_behind(second, best))}
        found["conclusion"] = OPPOSITE.get(second.vs_winner or "", "")
        if (ratio := second.behind) and math.isfinite(ratio.half):
            found |= {"low": math.exp(ratio.log - ratio.half), "high": math.exp(ratio.log + ratio.half)}
    return Leader(case, **found)


def _behind(line: Line, best: Line) -> float:
    """Return the logarithm of the time of ``line`` over that of ``best``; without their ratio, from separate times."""
    if line.behind:
        return line.behind.log
    times = line.time_us or 0.0, best.time_us or 0.0
    return math.log(times[0] / times[1]) if min(times) > 0 else 0.0


def sheet(run: Run, lines: Sequence[Line]) -> Sheet:
    """Return one row per problem, and below them where another implementation becomes the fastest."""
    found = leaders(run, lines)
    rows = [_cells(leader, run.names) for leader in found]
    notes = [*([TIED] if any(leader.fastest[1:] for leader in found) else []), *changes(found, run.names)]
    title = terminal.title(run, run.rows_of(lines), FILE_WIDTH)
    return Sheet(title, HEADS, [("", rows)], notes, frozenset({0, 1, 5, 6}))


def _cells(leader: Leader, names: Names) -> list[str]:
    ends = "" if leader.low is None or leader.high is None else f"{leader.low:.3f}x to {leader.high:.3f}x"
    return [
        names.heading(leader.case),
        f"{MARKS['tied' if leader.fastest[1:] else 'yes']} {', '.join(leader.fastest)}" if leader.fastest else NONE,
        figure(leader.time_us, "us"),
        "" if leader.ahead is None else f"{leader.ahead:.3f}x",
        ends,
        leader.next,
        leader.conclusion,
    ]


def records(run: Run, lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Return the rows of ``sheet`` with plain numbers."""
    return [
        {
            "workload": leader.case.workload.name,
            **{f"workload.{name}": value for name, value in leader.case.workload.fields.items()},
            **run.names.settings(leader.case),
            "fastest": ", ".join(leader.fastest) or None,
            "time_us": leader.time_us,
            "ahead_by": leader.ahead,
            "ahead_low": leader.low,
            "ahead_high": leader.high,
            "next": leader.next or None,
            "conclusion": leader.conclusion or None,
        }
        for leader in leaders(run, lines)
    ]


def changes(leaders: Sequence[Leader], names: Names) -> Iterator[str]:
    """Yield a sentence for each series of sizes: ``gelu cols: triton up to 1024, compiled from 2048``.

    The sizes are those of the number that takes most values. Everything else is the same in a series.
    """
    series: dict[tuple[str, str, str], list[tuple[Any, Leader]]] = {}
    for workload in names.axes:
        some = [leader for leader in leaders if leader.case.workload.name == workload and leader.fastest]
        if axis := _axis([leader.case.workload.fields for leader in some], names.axes[workload]):
            for leader in some:
                others = {name: value for name, value in names.problem(leader.case).items() if name != axis}
                rest = " ".join(f"{name}={value}" for name, value in others.items())
                series.setdefault((workload, axis, rest), []).append((leader.case.workload.fields[axis], leader))
    for (workload, axis, rest), sizes in series.items():
        if len({size for size, _ in sizes}) > 1:
            ranges = _ranges([(size, leader.fastest) for size, leader in sorted(sizes, key=lambda one: one[0])])
            yield f"{workload} {axis}{f' ({rest})' if rest else ''}: {', '.join(ranges)}"


def _axis(fields: Sequence[Mapping[str, Scalar]], axes: Sequence[str]) -> str:
    """Return that of ``axes`` which takes most numbers in ``fields``; "" if none takes several."""
    values = {axis: {each[axis] for each in fields} for axis in axes}
    counts = {axis: len(some) for axis, some in values.items() if all(type(one) in (int, float) for one in some)}
    best = max(counts, key=lambda axis: counts[axis], default="")
    return best if counts.get(best, 0) > 1 else ""


def _ranges(winners: Sequence[tuple[Any, Sequence[str]]]) -> list[str]:
    """Return who is fastest from which size to which. A change is where no implementation is among both winners."""
    found: list[tuple[list[str], list[Any]]] = []
    for size, labels in winners:
        if found and (still := [label for label in found[-1][0] if label in labels]):
            found[-1] = still, [*found[-1][1], size]
        else:
            found.append((list(labels), [size]))
    names, sizes = [" or ".join(labels) for labels, _ in found], [some for _, some in found]
    if len(found) == 1:
        return [f"{names[0]} from {sizes[0][0]} to {sizes[0][-1]}"]
    between = [
        f"{name} at {some[0]}" if len(some) == 1 else f"{name} from {some[0]} to {some[-1]}"
        for name, some in zip(names[1:-1], sizes[1:-1], strict=True)
    ]
    return [f"{names[0]} up to {sizes[0][-1]}", *between, f"{names[-1]} from {sizes[-1][0]}"]
