"""Compare the same cases of two or more runs, or the cases of one run that differ in one field.

Two times of one call differ by more than their own intervals say: between processes, between minutes, between days. A
conclusion needs to know by how much. ``Source`` lists where that is known from, the best one first.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import itemgetter
from typing import Any, Literal

from ..records.bad_input import BadInput, choices
from ..records.case import CaseRecord, Choice
from ..records.figures import as_typed
from ..records.grouping import grouped
from ..records.labels import several
from ..records.row import Row
from ..timing import statistics
from ..timing.statistics import BATCHES, Ratio, Relation
from ..timing.verdict import GRAVITY
from .matching import Match, MatchedCase, MatchKey, Side, by_match_key, match_sides, sides_of, typed
from .names import Names
from .ratios import FEWEST_REPLICAS, Spread, by_key, doubt, known_spread, ratio_in_rounds, row_in_rounds
from .replicas import merge_replicas, replicas_by_case
from .run import Run
from .validity import DRIFTING, certain, doubt_of

Source = Literal[
    "paired rounds",  # both were sampled in turn, in one process
    Spread,
    "unknown",  # there is no conclusion
]


@dataclass(frozen=True)
class Pair:
    """A case on two sides: in two runs, at two values of a field, or before a change and after it."""

    problem: str  # workload and what varies: ``gelu cols=1024``
    implementation: str  # its label: ``compiled(mode=default)``
    reference: Row | None = None  # the replicas merged into one; None: no row on that side
    row: Row | None = None
    doubt: str = ""  # why there is no ratio, as ``only in A``, or no conclusion from it
    ratio: Ratio | None = None  # time of ``row`` over that of ``reference``
    processes: tuple[int, int] = (1, 1)  # behind each of the two times

    @property
    def name(self) -> str:
        """The problem and the implementation: ``gelu cols=1024 triton``."""
        return f"{self.problem} {self.implementation}".rstrip()


@dataclass(frozen=True, kw_only=True)
class TimedPair(Pair):
    """A pair with two times. They are those of the paired rounds if the ratio is."""

    reference: Row
    row: Row
    ratio: Ratio  # its half-width is infinite without a known spread
    source: Source = "unknown"  # where the spread comes from
    word: Relation = "unclear"  # how ``row`` is compared to ``reference``, corrected for the number of comparisons


@dataclass(frozen=True)
class RunComparison:
    """One side against the reference. Pairs are in the order of the reference's cases."""

    reference: str  # name of the reference side: A, or a value of the field
    name: str
    pairs: Sequence[TimedPair]
    left_out: Sequence[Pair]


def compare_runs(compared: Sequence[Run], names: Sequence[str]) -> list[RunComparison]:
    """Compare each other run with the first. Words are corrected for all comparisons together.

    Two cases are the same if they have the same workload, implementation, seed, debugging mode and kind of device, and
    on a GPU the same fields of ``MEASURED``. The model of the GPU, versions, the number of replicas, measurements
    beside the benchmark, and what only says how exactly to measure, may differ, unless a run has several cases that
    differ in that alone. A git revision is the same if it was typed alike: ``main`` is ``main``, also a week later. A
    function in a file is the same also in another folder, if no other file has its name.
    """
    first, *others = sides_of(compared, names)
    return _judged(first, others)


def compare_values(run: Run, field: str, reference: str | None = None) -> list[RunComparison]:
    """Compare the cases of each value of ``field`` with those of the value ``reference``, by default the first.

    ``field`` is named as on the command line, also without its group: ``workload.dtype``, ``dtype``, ``seed``. A field
    that is a copy of it in this run, as ``m`` may be of ``size``, goes with it.

    Raises BadInput if there is no such field or value, or no two cases with a time differ in it alone.
    """
    name = _field(run, field)
    every = list(replicas_by_case(run.rows).values())
    cases = [(rows[0].case, rows) for rows in every if name in rows[0].case.flat]
    values = list(dict.fromkeys(as_typed(case.flat[name]) for case, _ in cases))
    if not values[1:]:
        raise BadInput(f"--by {field}: {name} is {values[0]} in all cases; name a field that varies in this run")
    if reference is not None and reference not in values:
        raise BadInput(f"--reference {reference}: {name} has no such value; {choices(reference, values)}")
    copies = _copies([rows[0].case for rows in every], name)
    matched = [(case, MatchedCase(_without(case, {name, *copies[case.workload.name]}), rows)) for case, rows in cases]
    sides = {
        value: Side(value, run, by_match_key(each for _, each in members))
        for value, members in grouped(matched, lambda pair: as_typed(pair[0].flat[name])).items()
    }
    first = sides.pop(reference or values[0])
    comparisons = _judged(first, list(sides.values()))
    if not any(comparison.pairs for comparison in comparisons):
        raise BadInput(f"--by {field}: no two cases with a time differ in {name} alone")
    others = [merge_replicas(rows) for rows in every if name not in rows[0].case.flat]
    without = [Pair(*run.names.parts(row.case), row, doubt=f"no field {name}") for row in others]
    return [replace(comparisons[0], left_out=[*comparisons[0].left_out, *without]), *comparisons[1:]]


def _judged(first: Side, others: Sequence[Side]) -> list[RunComparison]:
    """Compare each of ``others`` with ``first``. The verdicts are corrected for the number of pairs."""
    matches = [match_sides(first, other) for other in others]
    every = [*chain.from_iterable(first.cases.values()), *chain.from_iterable(match.alone[1] for match in matches)]
    names = Names([matched.case for matched in every])
    comparisons = []
    for match in matches:
        judged = [_pair(case, twin, match, names) for case, twin in match.both]
        pairs = [pair for pair in judged if isinstance(pair, TimedPair)]
        left_out = [*(pair for pair in judged if not isinstance(pair, TimedPair)), *_unmatched(match, names)]
        comparisons.append(RunComparison(first.name, match.other.name, pairs, left_out))
    words = iter(statistics.words([pair.ratio for comparison in comparisons for pair in comparison.pairs]))
    return [replace(each, pairs=[replace(pair, word=next(words)) for pair in each.pairs]) for each in comparisons]


def _pair(first: MatchedCase, other: MatchedCase, match: Match, names: Names) -> Pair:
    """Return the pair of two equal cases; a ``TimedPair`` if they can be compared."""
    rows = merge_replicas(first.rows), merge_replicas(other.rows)
    sides, label = (match.first.name, match.other.name), names.parts(first.case)
    in_one_run = match.first.run is match.other.run
    instruments = [row.metrics.get("instrument") for row in rows]
    reason = _no_time(rows, sides)
    if not reason and not in_one_run and instruments[0] != instruments[1]:
        reason = f"timed by {instruments[0]} in {sides[0]} and by {instruments[1]} in {sides[1]}"
    if reason:
        return Pair(*label, *rows, reason)
    rounds = by_key(match.first.run.rounds) if in_one_run else {}
    ratio, source, reason = _ratio(first.rows, other.rows, rounds, sides)
    if ratio.paired:
        rows = row_in_rounds(rows[0], first.rows, rounds), row_in_rounds(rows[1], other.rows, rounds)
    reference, row = rows
    counts = len(first.rows), len(other.rows)
    return TimedPair(*label, doubt=reason, reference=reference, row=row, ratio=ratio, processes=counts, source=source)


def _no_time(rows: Sequence[Row], names: Sequence[str]) -> str:
    """Return the reason why the times of two rows cannot be compared, else ""."""
    reasons = grouped(zip(map(_invalid, rows), names, strict=True), itemgetter(0))
    texts = ((what, " and ".join(name for _, name in sides), more) for (what, more), sides in reasons.items())
    return "; ".join(f"{what} in {where}{more}" for what, where, more in texts if what)


def _invalid(row: Row) -> tuple[str, str]:
    """Return the reason why a row has no valid time, before and after the name of its side; "", "" if it has one."""
    if row.status != "ok":
        return row.status, f": {row.reason}"
    if row.metrics.get("verdict") == "wrong":
        return "wrong in the timed calls", ""
    if row.time_us is None:
        return "no time", ""
    if row.time_us <= 0:
        return "a time of 0", ""
    return (f"debug={row.case.settings.debug}", ": the time is not valid") if row.case.settings.debug else ("", "")


def _ratio(
    first: Sequence[Row], other: Sequence[Row], rounds: Mapping[str, Any], names: Sequence[str]
) -> tuple[Ratio, Source, str]:
    """Return the time of a case over that of the reference, where its spread comes from, and why there is none."""
    if ratio := ratio_in_rounds(other, first, rounds):
        return (ratio, "unknown", reason) if (reason := doubt(ratio)) else (ratio, "paired rounds", "")
    doubts = [(_doubt(rows), name) for rows, name in zip((first, other), names, strict=True)]
    reason = next((f"{text} in {name}" for text, name in doubts if text), "")
    if not reason and (known := known_spread(first, other)):
        return *known, ""
    log = math.log((merge_replicas(other).time_us or 1.0) / (merge_replicas(first).time_us or 1.0))
    return Ratio(log, math.inf, BATCHES - 1, paired=False), "unknown", reason or NO_SPREAD


NO_SPREAD = f"neither {FEWEST_REPLICAS} replicas nor a certificate (python -m runner verify) on both sides"
GRAVE = GRAVITY[: GRAVITY.index("contended") + 1]  # verdicts of a time that may be another one


def _doubt(rows: Sequence[Row]) -> str:
    """Return the reason why the time of a case is uncertain, else ""."""
    for row in rows:
        if not row.time_us:
            return "one replica cannot be told from an empty call"
        verdict, samples = str(row.metrics.get("verdict", "ok")), row.metrics.get("samples", 0)
        if not certain(row):
            grave = verdict in GRAVE or verdict not in GRAVITY
            wide = DRIFTING if doubt_of(row) == DRIFTING else "not converged"
            few = f"{samples} samples, fewer than {BATCHES}" if float(samples or 0) < BATCHES else wide
            return verdict.replace("_", " ") if grave else few
    return ""


def _unmatched(match: Match, names: Names) -> Iterator[Pair]:
    """Yield the cases that only one side has, and those that cannot be told apart, with the reasons."""
    for case, twin in match.ambiguous:
        reason = "several cases differ only in the commit of their revision"
        yield Pair(*names.parts(case.case), merge_replicas(case.rows), merge_replicas(twin.rows), reason)
    shared = _shared_fields([*match.alone[0], *match.alone[1]])
    alike = [{_common(each.case, shared): each for each in reversed(cases)} for cases in match.alone]
    sides = match.first.name, match.other.name
    for place, side in enumerate(sides):
        for case in match.alone[place]:
            pair = [each.get(_common(case.case, shared), case) for each in alike]
            pair[place] = case
            row, reason = merge_replicas(case.rows), f"only in {side}{_difference(pair, sides)}"
            first, other = (None, row) if place else (row, None)
            yield Pair(*names.parts(case.case), first, other, reason)


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
