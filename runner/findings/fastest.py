"""Who is fastest at each problem, where along the swept sizes that changes, and how fast one case is beside another."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..records.case import CaseRecord
from ..records.figures import times
from ..records.grouping import grouped
from ..timing.statistics import SAME, Ratio
from .chart_data import part, swept
from .lines import OPPOSITE, WINS, Line
from .names import Names
from .ratios import apart, bounds, inverse
from .validity import contended, may_win

VAGUE = 10.0  # if an interval reaches from a tenth to ten times the ratio, only the nearer end is printed


@dataclass(frozen=True)
class Leader:
    """The fastest implementation of a problem, and the next one."""

    case: CaseRecord  # one case of the problem
    fastest: Sequence[str] = ()  # labels: the fastest first, then those tied with it
    line: Line | None = None  # line of the fastest
    next: str = ""
    ahead: float | None = None  # the next one's time over the fastest's
    low: float | None = None  # ends of its 95 % interval
    high: float | None = None
    conclusion: str = ""  # how the fastest is compared to the next: faster | same | unclear; "" if not known

    @property
    def word(self) -> str:
        """The value of the column ``fastest`` of the fastest; "no" without one."""
        return self.line.fastest if self.line else "no"


def leaders(lines: Sequence[Line], names: Names) -> list[Leader]:
    """Return the leader of each problem of ``lines``; one without a correct and timed case has no ``fastest``."""
    return [_leader(members, names) for members in grouped(lines, lambda line: line.case.problem).values()]


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
    mine, least = line.shown.time_us or 0.0, best.shown.time_us or 0.0
    return math.log(mine / least) if min(mine, least) > 0 else 0.0


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
    """Return the leaders in stretches of sizes, in each of which some implementation is always among the fastest.

    In all sizes of a stretch the fastest was compared with every other, or in none.
    """
    stretches: list[tuple[list[str], list[Leader]]] = []
    for leader in leaders:
        labels, before = stretches[-1] if stretches else ([], [leader])
        still = [label for label in labels if label in leader.fastest]
        if still and (leader.word == "unknown") == (before[-1].word == "unknown"):
            stretches[-1] = still, [*before, leader]
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


def gain(slower: Line, faster: Line, lines: Sequence[Line]) -> str:
    """Return the speed-up of the second line over the first in words: ``1.30x as fast (1.29x to 1.31x)``."""
    ratio, word = compared(slower, faster, lines)
    if word == "same":
        return "the same time within 1 %"
    return ratio_text(ratio.log, ratio.half).replace("x", "x as fast", 1) if word == "slower" else "not told apart"


def compared(slower: Line, faster: Line, lines: Sequence[Line]) -> tuple[Ratio, str | None]:
    """Return the time of the first line over that of the second, with the word of the table if it has one."""
    if faster.winner and slower.behind:
        return slower.behind, slower.vs_winner
    if faster.baseline and slower.ratio:
        return slower.ratio, slower.vs_baseline
    if slower.baseline and faster.ratio:
        return inverse(faster.ratio), OPPOSITE.get(faster.vs_baseline or "")
    (log, half), (other, around) = over_baseline(slower, lines), over_baseline(faster, lines)
    ratio = Ratio(log - other, math.hypot(half, around), freedom=9, paired=False)
    same = abs(ratio.log) + ratio.half < SAME
    return ratio, "same" if same else "slower" if ratio.log > ratio.half else "unclear"


def over_baseline(line: Line, lines: Sequence[Line]) -> tuple[float, float]:
    """Return the logarithm of the time, over the baseline's if all ``lines`` have such a ratio, and its half-width."""
    if all(each.ratio or each.baseline for each in lines):
        return (line.ratio.log, line.ratio.half) if line.ratio else (0.0, 0.0)
    percent = line.value("interval_pct")
    return math.log(line.time_us or 1.0), math.inf if percent is None else widened(line, percent / 100)


def widened(line: Line, half: float) -> float:
    """Return ``half``, the half-width of a time of ``line`` as a share, wider if other processes may have slowed it."""
    return math.hypot(half, apart(line.row)) if contended(line.row) else half


def ratio_text(log: float, half: float | None) -> str:
    """Return a ratio with its 95 % interval, both of which are given as logarithms."""
    text = times(math.exp(log))
    if half is None:
        return text
    if half > math.log(VAGUE):
        end = f"at {'least' if log > 0 else 'most'} {times(math.exp(log - math.copysign(half, log)))}"
        return end if abs(log) > half else "not told apart"
    return f"{text} ({times(math.exp(log - half))} to {times(math.exp(log + half))})"
