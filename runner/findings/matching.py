"""Match the cases of two runs: which of them are the same."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..records.case import BENCH, CaseRecord, Choice
from ..records.grouping import grouped
from ..records.row import Row
from ..records.settings import EXACTNESS
from .names import varying_settings
from .replicas import replicas_by_case
from .run import Run

# Fields of the benchmark that change what is measured, and not only how exactly. The instrument counts as well: that
# of the row, since ``auto`` may choose another one.
MEASURED = ("cold_l2", "buffer_sets")
TIMES = ("benchmark", BENCH)  # the measurements that give a time

MatchKey = tuple[Any, ...]  # equal for cases that can be compared


@dataclass(frozen=True)
class MatchedCase:
    """A case with the rows of its replicas."""

    case: CaseRecord  # reduced to what must be equal
    rows: Sequence[Row]  # one for each replica


@dataclass(frozen=True)
class Side:
    """One of the runs, or of the values, that are compared."""

    name: str
    run: Run
    cases: Mapping[MatchKey, Sequence[MatchedCase]]  # several of one key have other commits of a revision


def sides_of(runs: Sequence[Run], names: Sequence[str]) -> list[Side]:
    """Return ``runs`` as sides with ``names``."""
    cases = matched_cases([run.rows for run in runs])
    return [Side(name, run, by_match_key(each)) for name, run, each in zip(names, runs, cases, strict=True)]


def matched_cases(runs: Sequence[Sequence[Row]]) -> list[list[MatchedCase]]:
    """Return the cases of runs by their rows, with the settings by which a run has several that are equal without."""
    found, kept = list(map(_reduced_cases, runs)), defaultdict[MatchKey, set[str]](set)
    for cases in found:
        for key, alike in by_match_key(cases).items():
            kept[key] |= varying_settings([each.rows[0].case for each in alike])

    def told_apart(one: MatchedCase) -> MatchedCase:
        return replace(one, case=reduced(one.rows[0].case, one.case.settings.device, kept[match_key(one.case)]))

    return [list(map(told_apart, cases)) for cases in found]


def by_match_key(cases: Iterable[MatchedCase]) -> dict[MatchKey, list[MatchedCase]]:
    """Group ``cases`` by match key."""
    return grouped(cases, lambda matched: match_key(matched.case))


def _reduced_cases(rows: Sequence[Row]) -> list[MatchedCase]:
    """Return the cases of a run with ``rows``, reduced."""
    kinds = {kind for row in rows if (kind := _kind(row))}
    default = kinds.pop() if len(kinds) == 1 else "auto"
    return [
        MatchedCase(reduced(replicas[0].case, next((kind for kind in map(_kind, replicas) if kind), default)), replicas)
        for replicas in replicas_by_case(rows).values()
    ]


def _kind(row: Row) -> Literal["cpu", "cuda", ""]:
    """Return the kind of device that a case ran on, or was to run on; "" if that is not known."""
    if row.case.settings.device != "auto":
        return row.case.settings.device
    return "cpu" if row.device == "cpu" else "cuda" if row.device else ""


def reduced(case: CaseRecord, kind: Literal["auto", "cpu", "cuda"], kept: Collection[str] = ()) -> CaseRecord:
    """Return ``case`` without what may differ between two runs: how exactly it is measured, and a commit.

    ``kept``: names of such settings that stay, as in ``flat_settings``.
    """
    fields = {*kept, *(f"measure.{name}.{field}" for name in TIMES for field in MEASURED if kind != "cpu")}
    chosen = [
        Choice(each.name, {k: v for k, v in each.fields.items() if f"measure.{each.name}.{k}" in fields})
        for each in case.measures
    ]
    measures = tuple(each for each in chosen if each.fields or each.name in TIMES or "measure" in kept)
    settings = replace(case.settings.without({*EXACTNESS}.difference(kept)), device=kind)
    return CaseRecord(case.workload, typed(case.impl), measures, settings)


def typed(impl: Choice) -> Choice:
    """Return ``impl`` with its git revision as it was typed, without the commit."""
    return Choice(impl.name, impl.options | ({"rev": impl.revision} if impl.revision else {}))


def match_key(case: CaseRecord) -> MatchKey:
    """Return a key that two cases share if they can be compared."""
    choices = (case.workload, case.impl, *case.measures)
    return (*((choice.name, frozenset(choice.fields.items())) for choice in choices), case.settings)


@dataclass(frozen=True)
class Match:
    """The cases of two sides."""

    first: Side
    other: Side
    both: Sequence[tuple[MatchedCase, MatchedCase]]  # in the order of the first side
    ambiguous: Sequence[tuple[MatchedCase, MatchedCase]]
    alone: Sequence[Sequence[MatchedCase]]  # those of the first side alone, and of the other


def match_sides(first: Side, other: Side) -> Match:
    """Find the cases that both sides have."""
    twins, ambiguous = {}, []
    for key, cases in first.cases.items():
        others = other.cases.get(key, ())
        if len(cases) == len(others) == 1:
            twins[id(cases[0])] = others[0]
        elif others:  # a branch has moved during one of the runs
            ambiguous += [(case, others[0]) for case in cases]
    alone = [
        [case for key, cases in side.cases.items() if key not in against.cases for case in cases]
        for side, against in ((first, other), (other, first))
    ]
    mine, theirs = map(_by_file_name, alone)
    pairs = [(cases[0], theirs[key][0]) for key, cases in mine.items() if len(cases) == len(theirs.get(key, ())) == 1]
    twins |= {id(case): twin for case, twin in pairs}
    moved = {id(case) for pair in pairs for case in pair}
    both = [(case, twins[id(case)]) for cases in first.cases.values() for case in cases if id(case) in twins]
    rest = [[case for case in cases if id(case) not in moved] for cases in alone]
    return Match(first, other, both, ambiguous, rest)


def _by_file_name(cases: Iterable[MatchedCase]) -> dict[MatchKey, list[MatchedCase]]:
    """Group the cases of functions in files by match key, in which the folder of the file does not count."""

    def key(case: CaseRecord) -> MatchKey:
        name = str(case.impl.fields["path"]).rpartition("/")[2]
        return match_key(replace(case, impl=Choice(case.impl.name, {**case.impl.fields, "path": name})))

    return grouped((each for each in cases if each.case.impl.fields.get("path")), lambda each: key(each.case))
