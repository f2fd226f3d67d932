"""Compare the same cases of two or more runs, or the cases of one run that differ in one field.

Two times of one call differ by more than their own intervals say: between processes, between minutes, between days. A
conclusion needs to know by how much. ``Source`` lists where that is known from, the best one first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal

from ..records.bad_input import BadInput, choices
from ..records.case import CaseRecord, Choice, as_typed
from ..records.grouping import grouped
from ..records.labels import several
from ..records.row import Row
from ..timing import statistics
from ..timing.statistics import BATCHES, Ratio, Relation
from ..timing.verdict import GRAVITY
from .matching import Match, MatchedCase, MatchKey, Side, cases_by_key, match_key, match_sides, typed
from .names import Names
from .ratios import between_processes, by_key, doubt, ratio_in_rounds, row_in_rounds, separate_ratio
from .replicas import merge_replicas, replicas_by_case
from .run import Run
from .validity import DRIFTING, certain, doubt_of

Source = Literal[
    "paired rounds",  # both were sampled in turn, in one process
    "replicas",  # at least three processes on each side
    "verify",  # certificates of both: how much the times of one call in several processes differ
    "unknown",  # there is no conclusion
]
FEWEST_REPLICAS = 3  # processes on each side, for a spread between processes


@dataclass(frozen=True)
class CasePair:
    """A case that both sides have a time of."""

    problem: str  # workload and what varies: ``gelu cols=1024``
    implementation: str  # its label: ``compiled(mode=default)``
    reference: Row  # the replicas merged into one; its time is that of the paired rounds if the ratio is
    row: Row
    replicas: tuple[int, int]  # processes behind each of the two times
    ratio: Ratio  # time of ``row`` over that of ``reference``; its half-width is infinite without a known spread
    source: Source  # where the spread comes from
    doubt: str  # why there is no conclusion; "" if the spread is known
    word: Relation = "unclear"  # how ``row`` is compared to ``reference``, corrected for the number of comparisons


@dataclass(frozen=True)
class LeftOut:
    """A case that cannot be compared."""

    problem: str
    implementation: str
    reason: str  # ``only in A``, ``wrong in B: ...``
    reference: Row | None  # None: that side does not have it
    row: Row | None


@dataclass(frozen=True)
class RunComparison:
    """One side against the reference. Pairs are in the order of the reference's cases."""

    reference: str  # name of the reference side: A, or a value of the field
    name: str
    pairs: Sequence[CasePair]
    left_out: Sequence[LeftOut]


def compare_runs(compared: Sequence[Run], names: Sequence[str]) -> list[RunComparison]:
    """Return how each run but the first compares to the first. Words are corrected for all comparisons together.

    Two cases are the same if they have the same workload, implementation, seed, debugging mode and kind of device, and
    on a GPU the same fields of ``MEASURED``. The model of the GPU, versions, the number of replicas, and what only says
    how exactly to measure, may differ. A git revision is the same if it was typed alike: ``main`` is ``main``, also a
    week later. A function in a file is the same also in another folder, if no other file has its name.
    """
    sides = [Side(name, run, cases_by_key(run)) for name, run in zip(names, compared, strict=True)]
    return _judged(sides[0], sides[1:], check_instruments=True)


def compare_values(run: Run, field: str, reference: str | None = None) -> list[RunComparison]:
    """Return how the cases of each value of ``field`` compare to those of ``reference``, by default its first value.

    ``field`` is named as on the command line, also without its group: ``workload.dtype``, ``dtype``, ``seed``. A field
    that is a copy of it in this run, as ``m`` may be of ``size``, goes with it.

    Raises BadInput if there is no such field or value, or no two cases with a time differ in it alone.
    """
    name = _field(run, field)
    cases = [(rows, rows[0].case.flat) for rows in replicas_by_case(run.rows).values()]
    values = list(dict.fromkeys(as_typed(fields[name]) for _, fields in cases if name in fields))
    if not values[1:]:
        raise BadInput(f"--by {field}: {name} is {values[0]} in all cases; name a field that varies in this run")
    if reference is not None and reference not in values:
        raise BadInput(f"--reference {reference}: {name} has no such value; {choices(reference, values)}")
    sides: dict[str, dict[MatchKey, list[MatchedCase]]] = {value: {} for value in values}
    copies = _copies([rows[0].case for rows, _ in cases], name)
    without = []
    for rows, fields in cases:
        case = rows[0].case
        if name in fields:
            reduced = _without(case, {name, *copies[case.workload.name]})
            sides[as_typed(fields[name])].setdefault(match_key(reduced), []).append(MatchedCase(reduced, rows))
        else:
            label = run.names.heading(case), run.names.impl(case)
            without.append(LeftOut(*label, f"no field {name}", merge_replicas(rows), None))
    named = {value: Side(value, run, held) for value, held in sides.items()}
    first = named.pop(reference or values[0])
    comparisons = _judged(first, list(named.values()), check_instruments=False)
    if not any(comparison.pairs for comparison in comparisons):
        raise BadInput(f"--by {field}: no two cases with a time differ in {name} alone")
    return [replace(comparisons[0], left_out=[*comparisons[0].left_out, *without]), *comparisons[1:]]


def _judged(first: Side, others: Sequence[Side], *, check_instruments: bool) -> list[RunComparison]:
    """Return how each of ``others`` compares to ``first``, with the words of all pairs together."""
    matches = [match_sides(first, other) for other in others]
    every = [*chain.from_iterable(first.cases.values()), *chain.from_iterable(match.alone[1] for match in matches)]
    names = Names([matched.case for matched in every])
    comparisons = []
    for match in matches:
        judged = [_pair(case, twin, match, names, check_instruments=check_instruments) for case, twin in match.both]
        left_out = [*(pair for pair in judged if isinstance(pair, LeftOut)), *_unmatched(match, names)]
        pairs = [pair for pair in judged if isinstance(pair, CasePair)]
        comparisons.append(RunComparison(first.name, match.other.name, pairs, left_out))
    words = iter(statistics.words([pair.ratio for comparison in comparisons for pair in comparison.pairs]))
    return [replace(each, pairs=[replace(pair, word=next(words)) for pair in each.pairs]) for each in comparisons]


def _label(matched: MatchedCase, names: Names) -> tuple[str, str]:
    return names.heading(matched.case), names.impl(matched.case)


def _pair(
    first: MatchedCase, other: MatchedCase, match: Match, names: Names, *, check_instruments: bool
) -> CasePair | LeftOut:
    """Return the pair of two equal cases, or why they cannot be compared."""
    rows = merge_replicas(first.rows), merge_replicas(other.rows)
    sides, label = (match.first.name, match.other.name), _label(first, names)
    instruments = [f"{row.metrics.get('instrument')} in {side}" for row, side in zip(rows, sides, strict=True)]
    reason = _no_time(rows, sides)
    if not reason and check_instruments and rows[0].metrics.get("instrument") != rows[1].metrics.get("instrument"):
        reason = f"timed by {' and by '.join(instruments)}"
    if reason:
        return LeftOut(*label, reason, *rows)
    rounds = {} if match.first.run is not match.other.run else by_key(match.first.run.rounds)
    ratio, source, reason = _ratio(first.rows, other.rows, rounds, sides)
    if ratio.paired:
        rows = row_in_rounds(rows[0], first.rows, rounds), row_in_rounds(rows[1], other.rows, rounds)
    return CasePair(*label, *rows, (len(first.rows), len(other.rows)), ratio, source, reason)


def _no_time(rows: Sequence[Row], names: Sequence[str]) -> str:
    """Return why two rows have no times that can be compared; "" if they have."""
    reasons = grouped(zip(map(_invalid, rows), names, strict=True), lambda item: item[0])
    sides = {text: " and ".join(name for _, name in members) for text, members in reasons.items() if text}
    return "; ".join(text.replace("{}", f" in {where}", 1) for text, where in sides.items())


def _invalid(row: Row) -> str:
    """Return why a row has no valid time, with a place for the sides that this holds for; "" if it has one."""
    if row.status != "ok":
        return f"{row.status}{{}}: {row.reason}"
    if row.metrics.get("verdict") == "wrong":
        return "wrong in the timed calls{}"
    if row.time_us is None:
        return "no time{}"
    if row.time_us <= 0:
        return "a time of 0{}"
    return f"debug={row.case.settings.debug}{{}}: the time is not valid" if row.case.settings.debug else ""


def _ratio(
    first: Sequence[Row], other: Sequence[Row], rounds: Mapping[str, Any], names: Sequence[str]
) -> tuple[Ratio, Source, str]:
    """Return the time of a case over that of the reference, where its spread comes from, and why there is none."""
    if ratio := ratio_in_rounds(other, first, rounds):
        return (ratio, "unknown", reason) if (reason := doubt(ratio)) else (ratio, "paired rounds", "")
    sides = first, other
    doubts = [(_doubt(rows), name) for rows, name in zip(sides, names, strict=True)]
    reason = next((f"{text} in {name}" for text, name in doubts if text), "")
    if not reason and min(map(len, sides)) >= FEWEST_REPLICAS:
        return between_processes(first, other), "replicas", ""
    apart = [row.metrics.get("separate_pct") for rows in sides for row in rows]
    row, twin = merge_replicas(first), merge_replicas(other)
    known = [float(percent) for percent in apart if percent is not None]
    if not reason and len(known) == len(apart):
        if ratio := separate_ratio(twin, row, apart=max(known) / 100):
            return ratio, "verify", ""
        reason = "a time has no interval"
    log = math.log((twin.time_us or 1.0) / (row.time_us or 1.0))
    return Ratio(log, math.inf, BATCHES - 1, paired=False), "unknown", reason or NO_SPREAD


NO_SPREAD = f"neither {FEWEST_REPLICAS} replicas nor a certificate (python -m runner verify) on both sides"
GRAVE = GRAVITY[: GRAVITY.index("contended") + 1]  # verdicts of a time that may be another one


def _doubt(rows: Sequence[Row]) -> str:
    """Return why the time of a case is uncertain; "" if it is not."""
    for row in rows:
        verdict, samples = str(row.metrics.get("verdict", "ok")), row.metrics.get("samples", 0)
        if not certain(row):
            grave = verdict in GRAVE or verdict not in GRAVITY
            wide = DRIFTING if doubt_of(row) == DRIFTING else "not converged"
            few = f"{samples} samples, fewer than {BATCHES}" if float(samples or 0) < BATCHES else wide
            return verdict.replace("_", " ") if grave else few
    return ""


def _unmatched(match: Match, names: Names) -> Iterator[LeftOut]:
    """Yield the cases that only one side has, and those that cannot be told apart, with the reasons."""
    for case, twin in match.ambiguous:
        differing = ", ".join(sorted(several([each.rows[0].case.flat for each in (case, twin)])))
        reason = f"several cases differ only in {differing or 'what cannot be named'}"
        yield LeftOut(*_label(case, names), reason, merge_replicas(case.rows), merge_replicas(twin.rows))
    shared = _shared_fields([*match.alone[0], *match.alone[1]])
    alike = [{_common(each.case, shared): each for each in reversed(cases)} for cases in match.alone]
    sides = match.first.name, match.other.name
    for place, cases in enumerate(match.alone):
        for case in cases:
            order = -1 if place else 1  # the first side comes first
            pair = case, alike[1 - place].get(_common(case.case, shared), case)
            rows = merge_replicas(case.rows), None
            reason = f"only in {sides[place]}{_difference(pair[::order], sides)}"
            yield LeftOut(*_label(case, names), reason, *rows[::order])


def _shared_fields(cases: Iterable[MatchedCase]) -> dict[tuple[str, str], set[str]]:
    """Return, for each workload and implementation, the fields that all of their cases have."""
    shared: dict[tuple[str, str], set[str]] = {}
    for case in (matched.case for matched in cases):
        for group, choice in (("workload", case.workload), ("impl", case.impl)):
            shared.setdefault((group, choice.name), set(choice.fields)).intersection_update(choice.fields)
    return shared


def _common(case: CaseRecord, shared: Mapping[tuple[str, str], set[str]]) -> MatchKey:
    """Return workload and implementation with those of their fields that the cases of both sides have."""
    return tuple(
        (choice.name, frozenset((k, v) for k, v in choice.fields.items() if k in shared[group, choice.name]))
        for group, choice in (("workload", case.workload), ("impl", case.impl))
    )


def _difference(pair: Sequence[MatchedCase], names: Sequence[str]) -> str:
    """Return in what two cases of like workload and implementation differ, to follow ``only in A``."""
    sides = [(matched.case.flat, name) for matched, name in zip(pair, names, strict=True)]
    texts = []
    for name in {**sides[0][0], **sides[1][0]}:
        if sides[0][0].get(name) != sides[1][0].get(name):
            values = [f"{as_typed(fields[name])} in {side}" for fields, side in sides if name in fields]
            texts.append(f"{name} is {', '.join(values)}" + (" alone" if len(values) == 1 else ""))
    return f": {'; '.join(texts)}" if texts else ""


def _field(run: Run, short: str) -> str:
    """Return the full name of the field that ``short`` means. Raises BadInput if there is none, or several."""
    names = dict.fromkeys(name for row in run.rows for name in row.case.flat)
    meant = [short] if short in names else [name for name in names if name.endswith(f".{short}")]
    if not meant:
        varied = several(row.case.flat for row in run.rows) or names
        known = choices(short, {name.rpartition(".")[2] for name in varied})
        raise BadInput(f"--by {short}: no such field varies in this run; {known}")
    if meant[1:]:
        raise BadInput(f"--by {short}: several fields have this name; give one of: {', '.join(meant)}")
    return meant[0]


def _copies(cases: Iterable[CaseRecord], name: str) -> dict[str, set[str]]:
    """Return, for each workload, its fields that have the value of ``name`` in all of its ``cases``."""
    copies: dict[str, set[str]] = {}
    for case in cases:
        fields = [(field, value) for field, value in case.flat.items() if field.startswith("workload.")]
        same = {field for field, value in fields if value == case.flat.get(name, math.nan)}
        copies.setdefault(case.workload.name, same).intersection_update(same)
    return copies


def _without(case: CaseRecord, names: set[str]) -> CaseRecord:
    """Return ``case`` without the fields ``names``; its settings of that name become neutral."""

    def rest(choice: Choice, group: str) -> Choice:
        return Choice(choice.name, {k: v for k, v in choice.fields.items() if f"{group}.{k}" not in names})

    return replace(
        case,
        workload=rest(case.workload, "workload"),
        impl=rest(typed(case.impl), "impl"),
        measures=tuple(rest(measure, f"measure.{measure.name}") for measure in case.measures),
        settings=case.settings.without(names),
        replica=0,
    )
