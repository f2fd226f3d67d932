"""Find the fastest arguments of a kernel: the decisions of ``runner tune`` after its races, and its text.

A race samples all candidates of a problem in paired rounds, and leaves out those shown to be slower than the fastest
(``runner.timing.procedure.race``). Nothing here measures.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from statistics import fmean
from typing import Any

from .. import implementations
from ..records.case import ARGS, CaseRecord, Choice
from ..records.grouping import grouped
from ..records.paired_rounds import PairedRounds
from ..records.row import Row
from ..timing.statistics import BATCHES, Ratio
from . import ratios
from .ratios import ratio_in_rounds
from .validity import may_win

FEWEST_SAMPLES = 20  # that ``samples`` of the benchmark allows


@dataclass(frozen=True)
class Contest:
    """The candidates of one problem and implementation, and what is known of them so far."""

    default: CaseRecord  # without arguments, or with arguments at their defaults
    cases: tuple[CaseRecord, ...]  # all candidates, the default among them
    left: tuple[CaseRecord, ...] = ()  # the fastest, and those not shown to be slower than it
    fastest: CaseRecord | None = None  # None: no race yet, or no candidate has a time
    failed: tuple[tuple[CaseRecord, str], ...] = ()  # candidates without a time that counts, and why
    gain: Ratio | None = None  # time of the fastest over the default's, from processes that chose nothing

    @property
    def may_gain(self) -> bool:
        """Whether the fastest and the default differ, and both have a time."""
        failed = [case.key for case, _ in self.failed]
        return self.fastest is not None and self.default.key not in (self.fastest.key, *failed)


def contests(cases: Sequence[CaseRecord]) -> list[Contest]:
    """Return a contest for each problem and implementation of ``cases``. The default is always a candidate.

    Candidates are the same if they differ in arguments at their defaults alone. The last of them takes part.
    """

    def default(case: CaseRecord) -> CaseRecord:
        fields = {name: value for name, value in case.impl.fields.items() if not name.startswith(ARGS)}
        return replace(case, impl=Choice(case.impl.name, fields))

    def given(case: CaseRecord) -> str:
        defaults = implementations.build(case.impl).arguments(case.workload.name)
        return str({name: v for name, v in case.impl.arguments.items() if defaults.get(name) != repr(v)})

    groups = grouped(cases, lambda case: (case.problem, default(case).impl.text)).values()
    unique = [{given(case): case for case in (default(members[0]), *members)} for members in groups]
    return [Contest(next(iter(candidates.values())), tuple(candidates.values())) for candidates in unique]


def racing(case: CaseRecord) -> CaseRecord:
    """Return ``case`` for the race."""
    return replace(case, measures=(Choice("benchmark", {**case.measures[0].fields, "race": True}),))


def confirming(case: CaseRecord, process: int, processes: int) -> CaseRecord:
    """Return ``case`` for one of the ``processes`` that measure the gain, which share the rounds of a comparison."""
    fields: dict[str, Any] = dict(case.measures[0].fields)
    fields |= {name: round(math.sqrt(processes) * fields[name], 3) for name in ("target_pct", "target_cpu_pct")}
    rounds = max(BATCHES, math.ceil(fields["paired_rounds"] / processes))
    fields |= {"race": False, "samples": FEWEST_SAMPLES, "paired_rounds": rounds}
    return replace(case, measures=(Choice("benchmark", fields),), replica=process)


def judge(contest: Contest, rows: Sequence[Row], rounds: Sequence[PairedRounds]) -> Contest:
    """Return ``contest`` after the race whose ``rows`` and ``rounds`` are given.

    Without paired rounds, such as for very slow calls, the shortest time wins and nothing is shown to be slower.
    """
    by_key = {row.case.key: row for row in rows}
    raced, dropped = ratios.by_key(rounds), {key for each in rounds for key in each.dropped}
    left: list[tuple[float, CaseRecord]] = []
    failed: list[tuple[CaseRecord, str]] = []
    measured = [(case, by_key.get(racing(case).key)) for case in contest.cases]
    for case, row in measured:
        if row is None or not _is_timed(row):
            failed.append((case, _why(row)))
        elif row.case.key not in dropped:
            in_race = raced.get(row.case.key)
            left.append((fmean(in_race.batches_us[row.case.key]) if in_race else row.time_us or math.inf, case))
    fastest = min(left, key=itemgetter(0))[1] if left else None
    return replace(contest, left=tuple(case for _, case in left), fastest=fastest, failed=tuple(failed))


def confirm(contest: Contest, processes: int, rows: Sequence[Row], rounds: Sequence[PairedRounds]) -> Contest:
    """Return ``contest`` with its gain, from the rows of the fastest and of the default in ``processes`` processes."""
    if contest.fastest is None or not contest.may_gain:
        return contest
    numbers = range(1, processes + 1)
    mine, base = (
        [row for row in rows if row.case.key in {confirming(case, number, processes).key for number in numbers}]
        for case in (contest.fastest, contest.default)
    )
    timed = mine and base and all(map(_is_timed, (*mine, *base)))
    gain = ratio_in_rounds(mine, base, ratios.by_key(rounds)) if timed else None
    return replace(contest, gain=gain)


def _is_timed(row: Row) -> bool:
    return bool(may_win(row) and row.time_us)


def _why(row: Row | None) -> str:
    if row is None:
        return "not measured"
    return f"{row.status}: {row.reason}" if row.reason else str(row.metrics.get("verdict_reason") or "it has no time")
