"""Who is fastest at each problem, by how much, and where along the swept sizes that changes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..records.bad_input import BadInput
from ..records.case import CaseRecord
from ..records.grouping import grouped
from .chart_data import part, swept
from .lines import OPPOSITE, WINS, Line
from .names import Names
from .ratios import bounds
from .run import Run
from .validity import may_win


@dataclass(frozen=True)
class Leader:
    """The fastest implementation of a problem, and the next one."""

    case: CaseRecord  # of the problem
    fastest: Sequence[str] = ()  # labels: the fastest first, then those tied with it
    line: Line | None = None  # of the fastest
    next: str = ""
    ahead: float | None = None  # the next one's time over the fastest's
    low: float | None = None  # ends of its 95 % interval
    high: float | None = None
    conclusion: str = ""  # how the fastest is compared to the next: faster | same | unclear; "" if not known

    @property
    def word(self) -> str:
        """The value of the column ``fastest`` of the fastest; "no" without one."""
        return self.line.fastest if self.line else "no"


def leaders(run: Run, lines: Sequence[Line], names: Names | None = None) -> list[Leader]:
    """Return the leader of each problem of ``lines``. Raises BadInput if no case is correct and timed."""
    problems = grouped(lines, lambda line: line.case.problem)
    leaders = [_leader(members, names or run.names) for members in problems.values()]
    if not any(leader.fastest for leader in leaders):
        raise BadInput(f"{run.folder}: no case is correct and timed, so none is the fastest; runner show says why")
    return leaders


def _leader(lines: Sequence[Line], names: Names) -> Leader:
    case = lines[0].case
    rivals = [line for line in lines if may_win(line.row)]
    if not (best := next((line for line in rivals if line.winner), None)):
        return Leader(case)
    others = sorted((line for line in rivals if line is not best), key=lambda line: _behind(line, best))
    tied = [line for line in (best, *others) if line is best or line.fastest == "tied"]
    leader = Leader(case, [names.impl(line.case) for line in tied], best)
    if not others:
        return leader
    second, ahead = others[0], math.exp(_behind(others[0], best))
    low, high = (second.behind and bounds(second.behind)) or (None, None)
    conclusion = OPPOSITE.get(second.vs_winner or "", "")
    return replace(leader, next=names.impl(second.case), ahead=ahead, low=low, high=high, conclusion=conclusion)


def _behind(line: Line, best: Line) -> float:
    """Return the logarithm of the time of ``line`` over that of ``best``; without their ratio, from separate times."""
    if line.behind:
        return line.behind.log
    times = line.shown.time_us or 0.0, best.shown.time_us or 0.0
    return math.log(times[0] / times[1]) if min(times) > 0 else 0.0


def series_of(leaders: Sequence[Leader], names: Names) -> Iterator[tuple[str, str, list[Leader]]]:
    """Yield each series of sizes of one workload: the swept size, what else tells it apart, its leaders by size.

    The size is "" if no number is swept. Everything else but the implementation is the same in a series.
    """
    axis = swept([leader.case for leader in leaders], names)
    for text, members in grouped(leaders, lambda leader: part(leader.case, names, axis)).items():
        if axis:
            members.sort(key=lambda leader: float(leader.case.workload.fields.get(axis) or 0))
        yield axis, text, members


def segments(leaders: Sequence[Leader]) -> list[tuple[list[str], list[Leader]]]:
    """Return the leaders in stretches of sizes, in each of which some implementation is always among the fastest."""
    stretches: list[tuple[list[str], list[Leader]]] = []
    for leader in leaders:
        if stretches and (still := [label for label in stretches[-1][0] if label in leader.fastest]):
            stretches[-1] = still, [*stretches[-1][1], leader]
        else:
            stretches.append((list(leader.fastest), [leader]))
    return stretches


def ranges_of_winners(leaders: Sequence[Leader], names: Names) -> Iterator[str]:
    """Yield a sentence for each series of sizes: ``gelu cols: triton up to 1024, compiled from 2048``."""
    for workload in names.axes:
        won = [leader for leader in leaders if leader.case.workload.name == workload and leader.fastest]
        for axis, text, members in series_of(won, names):
            if axis and len({leader.case.workload.fields[axis] for leader in members if leader.word in WINS}) > 1:
                yield f"{workload} {axis}{f' ({text})' if text else ''}: {', '.join(_ranges(members, axis))}"


def _ranges(leaders: Sequence[Leader], axis: str) -> Iterator[str]:
    """Yield who is fastest from which size to which; a size where no win is shown interrupts a stretch."""
    stretches = segments([leader if leader.word in WINS else replace(leader, fastest=()) for leader in leaders])
    for place, (labels, members) in enumerate(stretches):
        first, last = (leader.case.workload.fields[axis] for leader in (members[0], members[-1]))
        where = f"at {first}" if first == last else f"from {first} to {last}"
        if stretches[1:] and place in (0, len(stretches) - 1):
            where = f"from {first}" if place else f"up to {last}"
        if labels:
            yield f"{' or '.join(labels)} {where}"
