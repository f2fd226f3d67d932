"""Compare the same cases of two or more runs, or the cases of one run that differ in one field.

Two times of one call differ by more than their own intervals say: between processes, between minutes, between days. A
conclusion needs to know by how much. ``Source`` lists where that is known from, the best one first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, variance
from typing import Any, Literal

from runner.device import identity
from runner.experiment.case import CaseRecord, Choice, Scalar, several
from runner.experiment.columns import DEVICE
from runner.experiment.results import Row, figure
from runner.experiment.schema import BadInput, choices
from runner.report import derive
from runner.report.derive import Names, Run
from runner.store.fingerprint import MEASURE, is_version
from runner.timing import statistics
from runner.timing.procedure import GRAVITY
from runner.timing.statistics import BATCHES, T_975, Ratio, Word

Source = Literal[
    "paired rounds",  # both were sampled in turn, in one process
    "replicas",  # at least three processes on each side
    "verify",  # certificates of both: how much the times of one call in several processes differ
    "unknown",  # there is no conclusion
]
FEWEST_REPLICAS = 3  # processes on each side, for a spread between processes

# Fields of the benchmark that change what is measured, and not only how exactly. The instrument counts as well: that
# of the row, since ``auto`` may choose another one.
MEASURED = ("cold_l2", "buffer_sets")
CLOCK_SHARE = 0.01  # medians of the clock that differ by less are alike
MOST_NAMED = 4  # files or values in one difference


@dataclass(frozen=True)
class Pair:
    """A case that both sides have a time of."""

    problem: str  # workload and what varies: ``gelu cols=1024``
    implementation: str  # its label: ``compiled(mode=default)``
    reference: Row  # the replicas merged into one
    row: Row
    replicas: tuple[int, int]  # processes behind each of the two times
    ratio: Ratio  # time of ``row`` over that of ``reference``; its half-width is infinite without a known spread
    source: Source  # where the spread comes from
    doubt: str  # why there is no conclusion; "" if the spread is known
    word: Word = "unclear"  # how ``row`` is compared to ``reference``, corrected for the number of comparisons

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The 95 % interval of the time of ``row`` over that of ``reference``; None without a known spread."""
        if not math.isfinite(self.ratio.half):
            return None
        return math.exp(self.ratio.log - self.ratio.half), math.exp(self.ratio.log + self.ratio.half)


@dataclass(frozen=True)
class LeftOut:
    """A case that cannot be compared."""

    problem: str
    implementation: str
    reason: str  # ``only in A``, ``wrong in B: ...``
    reference: Row | None  # None: that side does not have it
    row: Row | None


@dataclass(frozen=True)
class Comparison:
    """One side against the reference. Pairs are in the order of the reference's cases."""

    reference: str  # name of the reference side: A, or a value of the field
    name: str
    pairs: Sequence[Pair]
    left_out: Sequence[LeftOut]


def pairs(a: Run, b: Run, names: tuple[str, str] = ("A", "B")) -> Comparison:
    """Return how each case of ``b`` compares to the same case of ``a``: see ``runs``."""
    return runs([a, b], names)[0]


def runs(compared: Sequence[Run], names: Sequence[str]) -> list[Comparison]:
    """Return how each run but the first compares to the first. Words are corrected for all comparisons together.

    Two cases are the same if they have the same workload, implementation, seed, debugging mode and kind of device, and
    on a GPU the same fields of ``MEASURED``. The model of the GPU, versions, the number of replicas, and what only says
    how exactly to measure, may differ. A git revision is the same if it was typed alike: ``main`` is ``main``, also a
    week later. A function in a file is the same also in another folder, if no other file has its name.
    """
    sides = [_Side(name, run, _cases(run)) for name, run in zip(names, compared, strict=True)]
    return _judged(sides[0], sides[1:], check_instruments=True)


def by(run: Run, field: str, reference: str | None = None) -> list[Comparison]:
    """Return how the cases of each value of ``field`` compare to those of ``reference``, by default its first value.

    ``field`` is named as on the command line, also without its group: ``workload.dtype``, ``dtype``, ``seed``. A field
    that is a copy of it in this run, as ``m`` may be of ``size``, goes with it.

    Raises BadInput if there is no such field or value, or no two cases with a time differ in it alone.
    """
    name = _field(run, field)
    cases = list(derive.replicas(run.rows).values())
    flat = [rows[0].case.flat for rows in cases]
    values = list(dict.fromkeys(_word(one[name]) for one in flat if name in one))
    if not values[1:]:
        raise BadInput(f"--by {field}: {name} is {values[0]} in all cases; name a field that varies in this run")
    if reference is not None and reference not in values:
        raise BadInput(f"--reference {reference}: {name} has no such value; {choices(reference, values)}")
    sides: dict[str, dict[_Same, list[_Case]]] = {value: {} for value in values}
    copies = _copies(flat, name, [rows[0].case.workload.name for rows in cases])
    for rows, one in zip(cases, flat, strict=True):
        if name in one:
            case = _without(rows[0].case, {name, *copies[rows[0].case.workload.name]})
            sides[_word(one[name])].setdefault(match_key(case), []).append(_Case(case, rows))
    first = reference or values[0]
    others = [_Side(value, run, held) for value, held in sides.items() if value != first]
    found = _judged(_Side(first, run, sides[first]), others, check_instruments=False)
    if not any(comparison.pairs for comparison in found):
        raise BadInput(f"--by {field}: no two cases with a time differ in {name} alone")
    lacking = [derive.merged(rows) for rows, one in zip(cases, flat, strict=True) if name not in one]
    labels = [(run.names.heading(row.case), run.names.impl(row.case)) for row in lacking]
    without = [LeftOut(*label, f"no field {name}", row, None) for label, row in zip(labels, lacking, strict=True)]
    return [replace(found[0], left_out=[*found[0].left_out, *without]), *found[1:]]


_Same = tuple[Any, ...]  # equal for cases that can be compared


@dataclass(frozen=True)
class _Case:
    case: CaseRecord  # reduced to what must be equal
    rows: Sequence[Row]  # of its replicas


@dataclass(frozen=True)
class _Side:
    name: str
    run: Run
    cases: Mapping[_Same, Sequence[_Case]]  # several of one key differ only in what need not be equal


def _cases(run: Run) -> dict[_Same, list[_Case]]:
    """Return the cases of a run by what must be equal in another run."""
    kinds = {kind for row in run.rows if (kind := _kind(row))}
    only = next(iter(kinds)) if len(kinds) == 1 else "auto"
    found: dict[_Same, list[_Case]] = {}
    for rows in derive.replicas(run.rows).values():
        case = _reduced(rows[0].case, next((kind for row in rows if (kind := _kind(row))), only))
        found.setdefault(match_key(case), []).append(_Case(case, rows))
    return found


def _kind(row: Row) -> Literal["cpu", "cuda", ""]:
    """Return the kind of device that a case ran on, or was to run on; "" if that is not known."""
    if row.case.device != "auto":
        return row.case.device
    return "cpu" if row.device == "cpu" else "cuda" if row.device else ""


def _reduced(case: CaseRecord, kind: Literal["auto", "cpu", "cuda"]) -> CaseRecord:
    """Return ``case`` without what may differ between two runs."""
    fields = ((one.name, {name: one.fields[name] for name in MEASURED if name in one.fields}) for one in case.measures)
    measures = tuple(Choice(name, some) for name, some in fields if some and kind != "cpu")
    return replace(
        case, impl=typed(case.impl), measures=measures, device=kind, time_wrong=False, replica=0, quick=False
    )


def typed(impl: Choice) -> Choice:
    """Return ``impl`` with its git revision as it was typed, without the commit."""
    return Choice(impl.name, impl.options | ({"rev": impl.revision} if impl.revision else {}))


def match_key(case: CaseRecord) -> _Same:
    """Return what is equal for equal cases. A field that is null counts as missing, as in an older run."""
    choices = (case.workload, case.impl, *case.measures)
    fields = ((one.name, frozenset((k, v) for k, v in one.fields.items() if v is not None)) for one in choices)
    return (*fields, case.device, case.seed, case.debug, case.quick, case.time_wrong, case.deterministic_algorithms)


@dataclass(frozen=True)
class _Match:
    """The cases of two sides."""

    first: _Side
    other: _Side
    both: Sequence[tuple[_Case, _Case]]  # in the order of the first side
    ambiguous: Sequence[tuple[_Case, _Case]]
    mine: Sequence[_Case]  # of the first side alone
    theirs: Sequence[_Case]


def _match(first: _Side, other: _Side) -> _Match:
    """Find the cases that both sides have."""
    twins, ambiguous = {}, []
    for same, some in first.cases.items():
        if len(some) == len(others := other.cases.get(same, ())) == 1:
            twins[id(some[0])] = others[0]
        elif others:
            exact = {one.rows[0].case.key: one for one in others}
            twins |= {id(one): twin for one in some if (twin := exact.get(one.rows[0].case.key))}
            ambiguous += [(one, others[0]) for one in some if id(one) not in twins]
    alone = [
        [one for same, some in side.cases.items() if same not in against.cases for one in some]
        for side, against in ((first, other), (other, first))
    ]
    ends = list(map(_by_file_name, alone))
    moved = [(some[0], ends[1][end][0]) for end, some in ends[0].items() if len(some) == len(ends[1].get(end, ())) == 1]
    twins |= {id(one): twin for one, twin in moved}
    gone = {id(one) for pair in moved for one in pair}
    mine, theirs = ([one for one in cases if id(one) not in gone] for cases in alone)
    both = [(one, twins[id(one)]) for some in first.cases.values() for one in some if id(one) in twins]
    return _Match(first, other, both, ambiguous, mine, theirs)


def _by_file_name(cases: Iterable[_Case]) -> dict[_Same, list[_Case]]:
    """Return the cases of functions in files by what must be equal if the folder of the file need not be."""
    found: dict[_Same, list[_Case]] = {}
    for one in cases:
        if path := one.case.impl.fields.get("path"):
            fields = {**one.case.impl.fields, "path": str(path).rpartition("/")[2]}
            same = match_key(replace(one.case, impl=Choice(one.case.impl.name, fields)))
            found.setdefault(same, []).append(one)
    return found


def _judged(first: _Side, others: Sequence[_Side], *, check_instruments: bool) -> list[Comparison]:
    """Return how each of ``others`` compares to ``first``, with the words of all pairs together."""
    matches = [_match(first, other) for other in others]
    label = _labels([*_all(first), *(one for match in matches for one in match.theirs)])
    found = []
    for match in matches:
        judged = [_pair(label(one), one, twin, match, check_instruments) for one, twin in match.both]
        left_out = [*(one for one in judged if isinstance(one, LeftOut)), *_unmatched(match, label)]
        kept = [one for one in judged if isinstance(one, Pair)]
        found.append(Comparison(first.name, match.other.name, kept, left_out))
    ratios = [pair.ratio for comparison in found for pair in comparison.pairs]
    words = iter(statistics.words(ratios) if ratios else ())
    return [replace(one, pairs=[replace(pair, word=next(words)) for pair in one.pairs]) for one in found]


def _all(side: _Side) -> list[_Case]:
    return [one for some in side.cases.values() for one in some]


_Label = Callable[[_Case], tuple[str, str]]  # the problem and the implementation


def _labels(cases: Sequence[_Case]) -> _Label:
    """Return the function that labels ``cases``, by what varies over them."""
    full = whole(one.case for one in cases)
    names = Names([full(one.case) for one in cases])
    return lambda one: (names.heading(full(one.case)), names.impl(one.case))


def whole(cases: Iterable[CaseRecord]) -> Callable[[CaseRecord], CaseRecord]:
    """Return a function that adds to one of ``cases`` the fields of its workload that others have, as null.

    A case of an older run may lack some.
    """
    fields: dict[str, dict[str, Scalar]] = {}
    for case in cases:
        fields.setdefault(case.workload.name, {}).update(dict.fromkeys(case.workload.fields))

    def full(case: CaseRecord) -> CaseRecord:
        name = case.workload.name
        return replace(case, workload=Choice(name, {**fields[name], **case.workload.fields}))

    return full


def _pair(label: tuple[str, str], first: _Case, other: _Case, match: _Match, check_instruments: bool) -> Pair | LeftOut:
    """Return the pair of two equal cases, or why they cannot be compared."""
    rows = derive.merged(first.rows), derive.merged(other.rows)
    names = match.first.name, match.other.name
    instruments = [str(row.metrics.get("instrument")) for row in rows]
    reason = _no_time(rows, names)
    if not reason and check_instruments and instruments[0] != instruments[1]:
        reason = " and by ".join(f"{one} in {name}" for one, name in zip(instruments, names, strict=True))
        reason = f"timed by {reason}"
    if reason:
        return LeftOut(*label, reason, *rows)
    rounds = {} if match.first.run is not match.other.run else derive.by_key(match.first.run.rounds)
    ratio, source, doubt = _ratio(first.rows, other.rows, rounds, names)
    return Pair(*label, *rows, (len(first.rows), len(other.rows)), ratio, source, doubt)


def _no_time(rows: Sequence[Row], names: Sequence[str]) -> str:
    """Return why two rows have no times that can be compared; "" if they have."""
    found: dict[str, list[str]] = {}
    for row, name in zip(rows, names, strict=True):
        if row.status != "ok":
            found.setdefault(f"{row.status}{{}}: {row.reason}", []).append(name)
        elif row.metrics.get("verdict") == "wrong":
            found.setdefault("wrong in the timed calls{}", []).append(name)
        elif row.time_us is None:
            found.setdefault("no time{}", []).append(name)
        elif row.time_us <= 0:
            found.setdefault("a time of 0{}", []).append(name)
        elif row.case.debug:
            found.setdefault(f"debug={row.case.debug}{{}}: the time is not valid", []).append(name)
    return "; ".join(text.replace("{}", f" in {' and '.join(where)}", 1) for text, where in found.items())


def _ratio(
    first: Sequence[Row], other: Sequence[Row], rounds: Mapping[str, Any], names: Sequence[str]
) -> tuple[Ratio, Source, str]:
    """Return the time of a case over that of the reference, where its spread comes from, and why there is none."""
    if ratio := derive.ratio_in_rounds(other, first, rounds):
        return ratio, "paired rounds", ""
    sides = first, other
    doubt = next((f"{why} in {name}" for rows, name in zip(sides, names, strict=True) if (why := _doubt(rows))), "")
    if not doubt and min(map(len, sides)) >= FEWEST_REPLICAS:
        return between_processes(first, other), "replicas", ""
    apart = [row.metrics.get("separate_pct") for rows in sides for row in rows]
    one, twin = derive.merged(first), derive.merged(other)
    known = [float(percent) for percent in apart if percent is not None]
    if not doubt and len(known) == len(apart):
        if ratio := derive.separate_ratio(twin, one, apart=max(known) / 100):
            return ratio, "verify", ""
        doubt = "a time has no interval"
    log = math.log((twin.time_us or 1.0) / (one.time_us or 1.0))
    return Ratio(log, math.inf, BATCHES - 1, paired=False), "unknown", doubt or NO_SPREAD


NO_SPREAD = f"neither {FEWEST_REPLICAS} replicas nor a certificate of verify on both sides"
GRAVE = GRAVITY[: GRAVITY.index("contended") + 1]  # verdicts of a time that may be another one


def _doubt(rows: Sequence[Row]) -> str:
    """Return why the time of a case is uncertain; "" if it is not."""
    for row in rows:
        verdict, samples = str(row.metrics.get("verdict", "ok")), row.metrics.get("samples", 0)
        if not derive.certain(row):
            grave = verdict in GRAVE or verdict not in GRAVITY
            few = f"{samples} samples, fewer than {BATCHES}" if float(samples or 0) < BATCHES else "not converged"
            return verdict.replace("_", " ") if grave else few
    return ""


def between_processes(first: Sequence[Row], other: Sequence[Row]) -> Ratio:
    """Return the time of ``other`` over that of ``first``, each from several processes, by Welch's t-test of the logs.

    The uncertainty of the instrument may be the same in all processes, so more of them do not reduce it.
    """
    log, squares, sampling, systematic, freedom = 0.0, [], 0.0, 0.0, []
    for sign, rows in ((-1, first), (1, other)):
        logs = [math.log(row.time_us) for row in rows if row.time_us]
        log += sign * fmean(logs)
        squares.append(variance(logs) / len(logs))
        freedom.append(len(logs) - 1)
        halves = [_halves(row) for row in rows]
        sampling += fmean(half**2 for half, _ in halves) / len(halves)
        systematic += min(instrument for _, instrument in halves) ** 2
    total = sum(squares)
    welch = total**2 / sum(one**2 / n for one, n in zip(squares, freedom, strict=True)) if total else sum(freedom)
    degrees = max(1, min(int(welch), max(T_975)))
    between, within = T_975[degrees] * math.sqrt(total), math.sqrt(sampling)
    if within >= between:
        degrees = max(T_975)
    half = math.hypot(max(between, within), math.sqrt(systematic))
    return Ratio(log, half, degrees, paired=False, systematic=math.sqrt(systematic))


def _halves(row: Row) -> tuple[float, float]:
    """Return the half-widths of a time's interval from sampling and from the instrument, as shares."""
    sampling, whole = (float(row.metrics.get(name) or 0.0) / 100 for name in ("stat_pct", "interval_pct"))
    return sampling, math.sqrt(max(0.0, whole**2 - sampling**2))


def _unmatched(match: _Match, label: _Label) -> list[LeftOut]:
    """Return the cases that only one side has, and those that cannot be told apart, with the reasons."""
    names = match.first.name, match.other.name
    found = []
    for one, twin in match.ambiguous:
        differing = ", ".join(sorted(several([each.rows[0].case.flat for each in (one, twin)])))
        reason = f"several cases differ only in {differing or 'what cannot be named'}"
        found.append(LeftOut(*label(one), reason, derive.merged(one.rows), derive.merged(twin.rows)))
    shared = _shared_fields([*match.mine, *match.theirs])
    like = [{_common(one.case, shared): one for one in reversed(cases)} for cases in (match.mine, match.theirs)]
    for place, cases in enumerate((match.mine, match.theirs)):
        for one in cases:
            like_it = like[1 - place].get(_common(one.case, shared))
            couple = (one, like_it or one) if place == 0 else (like_it or one, one)
            reason = _difference(*couple, names)
            row = derive.merged(one.rows)
            alone = (row, None) if place == 0 else (None, row)
            found.append(LeftOut(*label(one), f"only in {names[place]}{reason}", *alone))
    return found


def _shared_fields(cases: Iterable[_Case]) -> dict[tuple[str, str], set[str]]:
    """Return, for each workload and implementation, the fields that all of their cases have."""
    found: dict[tuple[str, str], set[str]] = {}
    for one in cases:
        for group in ("workload", "impl"):
            choice: Choice = getattr(one.case, group)
            found.setdefault((group, choice.name), set(choice.fields)).intersection_update(choice.fields)
    return found


def _common(case: CaseRecord, shared: Mapping[tuple[str, str], set[str]]) -> _Same:
    """Return workload and implementation with those of their fields that the cases of both sides have."""
    groups = (("workload", case.workload), ("impl", case.impl))
    return tuple(
        (one.name, frozenset((k, v) for k, v in one.fields.items() if k in shared[group, one.name]))
        for group, one in groups
    )


def _difference(first: _Case, other: _Case, names: Sequence[str]) -> str:
    """Return in what two cases of like workload and implementation differ, to follow ``only in A``."""
    mine, theirs = first.case.flat, other.case.flat
    found = []
    for name in {**mine, **theirs}:
        values = [
            f"{_word(one[name])} in {side}" for one, side in zip((mine, theirs), names, strict=True) if name in one
        ]
        if mine.get(name) != theirs.get(name):
            found.append(f"{name} is {', '.join(values)}" + (" alone" if len(values) == 1 else ""))
    return f": {'; '.join(found)}" if found else ""


def _word(value: Scalar) -> str:
    """Return a value as it is typed."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _field(run: Run, asked: str) -> str:
    """Return the full name of the field that ``asked`` names. Raises BadInput if there is none, or several."""
    names = dict.fromkeys(name for row in run.rows for name in row.case.flat)
    found = [asked] if asked in names else [name for name in names if name.endswith(f".{asked}")]
    if not found:
        varied = several(row.case.flat for row in run.rows) or names
        known = choices(asked, {name.rpartition(".")[2] for name in varied})
        raise BadInput(f"--by {asked}: no such field varies in this run; {known}")
    if found[1:]:
        raise BadInput(f"--by {asked}: several fields have this name; give one of: {', '.join(found)}")
    return found[0]


def _copies(cases: Iterable[Mapping[str, Scalar]], name: str, workloads: Iterable[str]) -> dict[str, set[str]]:
    """Return, for each workload, its fields that have the value of ``name`` in all of its ``cases``."""
    found: dict[str, set[str]] = {}
    for one, workload in zip(cases, workloads, strict=True):
        like = {
            other for other, value in one.items() if other.startswith("workload.") and value == one.get(name, math.nan)
        }
        found.setdefault(workload, like).intersection_update(like)
    return found


def _without(case: CaseRecord, names: set[str]) -> CaseRecord:
    """Return ``case`` without the fields ``names``; its settings that belong to no group get their usual values."""

    def rest(choice: Choice, group: str) -> Choice:
        return Choice(choice.name, {k: v for k, v in choice.fields.items() if f"{group}.{k}" not in names})

    usual: dict[str, Any] = {"device": "auto", "seed": 0, "debug": None, "time_wrong": False, "quick": False}
    usual["deterministic_algorithms"] = False
    return replace(
        case,
        workload=rest(case.workload, "workload"),
        impl=rest(typed(case.impl), "impl"),
        measures=tuple(rest(one, f"measure.{one.name}") for one in case.measures),
        replica=0,
        **{name: value for name, value in usual.items() if name in names},
    )


def differences(a: Run, b: Run, names: tuple[str, str] = ("A", "B")) -> list[str]:
    """Return what differs between two runs beside the times: ``torch: 2.12.0 in A, 2.13.0 in B``.

    That is the machine, versions, commits, sources, inputs and settings. Sources, clocks and settings are compared over
    the cases that both have.
    """
    sides = [_Side(name, run, _cases(run)) for name, run in zip(names, (a, b), strict=True)]
    both = _match(*sides).both
    rows = [[row for pair in both for row in pair[place].rows] for place in (0, 1)]
    facts = [{**_machine(run), **_settings(some or run.rows)} for run, some in zip((a, b), rows, strict=True)]
    found = [
        f"{name}: {mine or 'none known'} in {names[0]}, {theirs or 'none known'} in {names[1]}"
        for name, mine in facts[0].items()
        if (theirs := facts[1].get(name, mine)) != mine
    ]
    clocks = [[float(mhz) for row in some if (mhz := row.metrics.get("sm_clock_mhz"))] for some in rows]
    if all(clocks) and abs(math.log(median(clocks[1]) / median(clocks[0]))) > CLOCK_SHARE:
        mine, theirs = (figure(median(some), "MHz") for some in clocks)
        found.append(f"clock of the multiprocessors (median): {mine} in {names[0]}, {theirs} in {names[1]}")
    return [*found, *_sources(*rows), *_moved(both, names)]


def _machine(run: Run) -> dict[str, str]:
    """Return what is known about the machine and the versions of a run, by names for people."""
    sessions: Sequence[Mapping[str, Any]] = run.sessions
    workers = [one for each in sessions for one in (each.get("worker"), *_mapping(each.get("workers")).values())]
    gpus = [_mapping(_mapping(one).get("gpu")) for one in workers]
    on_gpu = [row for row in run.rows if row.device not in ("", "cpu")]
    on_cpu = [row for row in run.rows if row.device == "cpu"]

    def known(name: str, *where: Iterable[Any]) -> str:
        return _some(_mapping(one).get(name) for some in where for one in some)

    packages = [_mapping(each.get("packages")) for each in sessions]
    return {
        "GPU": _some(sorted({row.device for row in on_gpu})),
        "card": _some(sorted({str(row.metrics.get("gpu_uuid", "")) for row in on_gpu})),
        "driver": known("driver", gpus),
        "CPU": known("cpu", workers),
        "CPU cores": known("cpu_cores", workers),
        "CPU threads": _some(row.metrics.get("threads") for row in on_cpu),
        "torch": known("torch", workers) or known("torch", packages),
        "CUDA of torch": known("torch_cuda", workers),
        "triton": known("triton", packages),
        "python": known("python", sessions),
        "commit": run.commits,
        "host": known("hostname", sessions),
        "system": known("system", sessions),
        **_properties(workers),
    }


def _properties(workers: Iterable[Any]) -> dict[str, str]:
    """Return the properties of the GPUs of ``workers``, by their columns; none where all ran on a CPU."""
    gpus = [identity.device_columns(one) for one in map(_mapping, workers) if one.get("gpu")]
    return {name: _some(gpu.get(name) for gpu in gpus) for name in DEVICE if any(name in gpu for gpu in gpus)}


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _some(values: Iterable[object]) -> str:
    """Return the different ones of ``values`` that are known, in order, at most ``MOST_NAMED`` of them."""
    known = list(dict.fromkeys(str(value) for value in values if value not in (None, "")))
    more = f" and {len(known) - MOST_NAMED} more" if known[MOST_NAMED:] else ""
    return ", ".join(known[:MOST_NAMED]) + more


def _settings(rows: Sequence[Row]) -> dict[str, str]:
    """Return the seeds, the number of processes per case, and the settings that may differ between equal cases."""
    cases = {row.case.key: row.case for row in rows}.values()
    counts = Counter(replace(case, replica=0).key for case in cases)
    found = {
        "measure": _some(sorted({one.name for case in cases for one in case.measures})),
        "seed": _some(sorted({case.seed for case in cases})),
        "processes per case": _some(sorted({*counts.values()})),
    }
    values: dict[str, dict[str, None]] = {}
    for case in cases:
        for name, value in case.flat.items():
            if name.startswith("measure.") or name == "quick":
                values.setdefault(name, {})[_word(value)] = None
    return found | {name: _some(some) for name, some in values.items()}


def _sources(first: Sequence[Row], other: Sequence[Row]) -> list[str]:
    """Say which files of equal cases differ, by their digests."""
    digests = [{(file, text) for row in rows for file, text in row.fingerprint.items()} for rows in (first, other)]
    if not all(digests):
        return []
    ends = [{(file.rpartition("/")[2], text) for file, text in some} for some in digests]
    changed = {
        file for file, text in digests[0] ^ digests[1] if (file.rpartition("/")[2], text) not in ends[0] & ends[1]
    }
    found = sorted(file for file in changed - {MEASURE} if not is_version(file))
    sources = [f"sources that differ: {_some(found)}"] if found else []
    return sources + ["the code that measures differs (runner/measure, runner/timing)"] * (MEASURE in changed)


def _moved(both: Sequence[tuple[_Case, _Case]], names: Sequence[str]) -> list[str]:
    """Say which functions are in files of different folders."""
    paths = (tuple(one.case.impl.fields.get("path") for one in pair) for pair in both)
    moved = dict.fromkeys(pair for pair in paths if pair[0] != pair[1])
    return [f"file: {mine} in {names[0]}, {theirs} in {names[1]}" for mine, theirs in moved]
