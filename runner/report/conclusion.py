"""The written conclusion of a run, worked out from its rows: who is fastest, where that changes, what is unclear."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, make_dataclass
from importlib import import_module
from inspect import isfunction, signature
from statistics import median
from typing import Any, get_type_hints

from runner.experiment import schema
from runner.experiment.case import CaseRecord, Choice
from runner.experiment.schema import BadInput, choices
from runner.measure import check_columns
from runner.report import compare, fastest, terminal
from runner.report.charts import part, swept
from runner.report.compare import Pair
from runner.report.derive import Line, Names, Run
from runner.report.fastest import Leader

MOST_MOVED = 20  # cases listed that are faster or slower than in another run
NO_WINNER = "no correct result has a time, so none is the fastest."
TOO_WIDE = "the interval of their ratio includes both; more samples, or replicas=3, would decide"
UNCERTAIN = (
    "one of the two times is uncertain itself (contended, not converged, or of fewer than 10 samples), or this machine "
    "has no certificate (python -m runner verify)"
)


@dataclass(frozen=True)
class Finding:
    """What was found about one workload."""

    workload: str
    summary: str  # one or two sentences
    details: Sequence[str]  # a sentence for each series of sizes


@dataclass(frozen=True)
class Conclusion:
    """The conclusion in sentences without markup."""

    answers: Sequence[str]  # to the question of the experiment, by its analyses
    findings: Sequence[Finding]  # one per workload
    unclear: Sequence[str]  # what cannot be told, and why
    failures: Sequence[str]  # wrong results, and cases without a result
    doubts: Sequence[str]  # what is odd about the times that there are


def conclude(run: Run) -> Conclusion:
    """Return the conclusion of ``run``."""
    names, lines = run.names, run.lines
    try:
        leaders = fastest.leaders(run, lines)
    except BadInput:  # there is no winner anywhere
        leaders = []
    findings = []
    for workload in dict.fromkeys(line.row.case.workload.name for line in lines):
        some = [leader for leader in leaders if leader.case.workload.name == workload and leader.fastest]
        mine = [line for line in lines if line.row.case.workload.name == workload]
        summary = _summary(some, mine, names) if some else f"{workload}: {NO_WINNER}"
        findings.append(Finding(workload, summary, list(_series(some, names))))
    rows = [line.row for line in lines]
    failures = terminal.notes([row for row in rows if row.status != "ok"], names)
    doubts = terminal.notes([row for row in rows if row.status == "ok"], names)
    return Conclusion(answers(run), findings, list(_unclear(lines, names)), failures, doubts)


def check(analysis: Choice, cases: Sequence[CaseRecord]) -> dict[str, Any]:
    """Return the arguments of ``analysis``, whose fields are those of ``cases``. Raises BadInput."""
    known = analyses()
    if analysis.name not in known:
        raise BadInput(f"conclusion: {analysis.name}: no such analysis; {choices(analysis.name, known)}")
    function, where = known[analysis.name], f"conclusion.{analysis.name}"
    parameters = [one for one in signature(function).parameters.values() if one.kind is one.KEYWORD_ONLY]
    hints = get_type_hints(function)
    defaults = {one.name: one.default for one in parameters if one.default is not one.empty}
    fields = make_dataclass(analysis.name, [(one.name, hints[one.name]) for one in parameters])
    found = schema.record(schema.build(fields, {**defaults, **analysis.fields}, where))
    own = dict.fromkeys(name for case in cases for name in case.flat)
    for name in ("over", "field"):
        if name in found and found[name] not in own:
            raise BadInput(f"{where}.{name}: {found[name]}: no case has this field; {choices(found[name], own)}")
    check_columns([found["column"]] if "column" in found else found.get("columns", ()))
    return found


def analyses() -> dict[str, Callable[..., Iterable[str]]]:
    """Return the public functions of ``runner.report.analyses`` by their names."""
    module = import_module("runner.report.analyses")  # it imports this module
    own = {name: one for name, one in vars(module).items() if isfunction(one) and one.__module__ == module.__name__}
    return {name: one for name, one in own.items() if not name.startswith("_")}


def answers(run: Run) -> list[str]:
    """Return what the analyses of ``run`` say, a sentence or two each."""
    found: list[str] = []
    for analysis in run.conclusion:
        try:
            arguments = check(analysis, run.cases)
        except BadInput as error:  # of another version
            found.append(str(error))
            continue
        said = list(analyses()[analysis.name](run, **arguments))
        given = ", ".join(f"{field}={_shown(value)}" for field, value in analysis.fields.items())
        found += said or [f"{analysis.name}({given}): no correct case of this run has the figures that it needs"]
    return found


def _shown(value: object) -> str:
    return f"[{','.join(map(str, value))}]" if isinstance(value, tuple) else str(value)


def _summary(leaders: Sequence[Leader], lines: Sequence[Line], names: Names) -> str:
    """Return how often each implementation is the fastest, and what that means beside the baseline."""
    workload, count = leaders[0].case.workload.name, len(leaders)
    if count == 1:
        return f"{workload}: {_sentence(leaders, '', [])}"
    alone = Counter(leader.fastest[0] for leader in leaders if len(leader.fastest) == 1)
    tied = sum(len(leader.fastest) > 1 for leader in leaders)
    parts = [f"{label} is the fastest at {number} of {count} problems" for label, number in alone.most_common()]
    parts += [f"at {tied} of {count} the fastest are tied"] if tied else []
    text = f"{workload}: {_and(parts)}."
    best = alone.most_common(1)[0][0] if alone else leaders[0].fastest[0]
    over = [line.speedup for line in lines if names.impl(line.row.case) == best and line.speedup and not line.baseline]
    base = {names.impl(line.row.case) for line in lines if line.baseline}
    if over and len(base) == 1:
        text += f" {best} is {_range(over)} as fast as {base.pop()}, the baseline (median {times(median(over))})."
    return text


def _series(leaders: Sequence[Leader], names: Names) -> Iterator[str]:
    """Yield a sentence for each series of sizes that are swept: who is fastest from where to where, and by how much."""
    axis = swept([leader.case for leader in leaders], names).name
    series: dict[str, list[Leader]] = {}
    for leader in leaders:
        series.setdefault(part(leader.case, names, axis), []).append(leader)
    for text, some in series.items():
        if axis:
            some.sort(key=lambda leader: float(leader.case.workload.fields.get(axis) or 0))
        segments = _segments(some)
        said = [_sentence(segment, axis, labels).removesuffix(".") for labels, segment in segments]
        changes = f" The fastest changes {_count(len(segments) - 1)}." if len(segments) > 1 else ""
        if axis or len(leaders) > 1:
            yield f"{f'{text}: ' if text else ''}{'; '.join(said)}.{changes}"


def _segments(leaders: Sequence[Leader]) -> list[tuple[list[str], list[Leader]]]:
    """Return the leaders in stretches of sizes, in each of which some implementation is always among the fastest."""
    found: list[tuple[list[str], list[Leader]]] = []
    for leader in leaders:
        if found and (still := [label for label in found[-1][0] if label in leader.fastest]):
            found[-1] = still, [*found[-1][1], leader]
        else:
            found.append((list(leader.fastest), [leader]))
    return found


def _sentence(leaders: Sequence[Leader], axis: str, labels: Sequence[str]) -> str:
    """Return who is fastest at the sizes of ``leaders``, how far ahead, and the interval of that."""
    labels = labels or leaders[0].fastest
    where = ""
    if axis:
        sizes = [leader.case.workload.fields.get(axis) for leader in leaders]
        where = f" at {axis}={sizes[0]}" if len(sizes) == 1 else f" from {axis}={sizes[0]} to {sizes[-1]}"
    if len(labels) > 1:
        return f"{_and(labels)} cannot be told apart{where}."
    ahead = [leader for leader in leaders if leader.ahead is not None and leader.fastest[0] == labels[0]]
    tied = sum(len(leader.fastest) > 1 for leader in leaders)
    text = f"{labels[0]} is the fastest{where}"
    text += f" (tied at {tied} of these {len(leaders)} sizes)" if tied and leaders[1:] else ""
    if not ahead:
        return f"{text}, the only correct one." if len(leaders) == 1 else f"{text}."
    nexts = _and(list(dict.fromkeys(leader.next for leader in ahead)))
    interval = ""
    if all(leader.low is not None for leader in ahead):
        low, high = min(leader.low or 0.0 for leader in ahead), max(leader.high or 0.0 for leader in ahead)
        interval = f" (95 % interval {times(low)} to {times(high)})"
    return f"{text}, {_range([leader.ahead or 0.0 for leader in ahead])} as fast as the next, {nexts}{interval}."


def _unclear(lines: Sequence[Line], names: Names) -> Iterator[str]:
    """Say which comparisons with the fastest and with the baseline have no conclusion, and why."""
    found: dict[tuple[str, str], list[Line]] = {}
    same = {line.row.case.problem for line in lines if line.winner and line.baseline}
    for line in lines:
        for word, ratio, whom in (
            (line.vs_winner, line.behind, "the fastest"),
            (line.vs_baseline, line.ratio, "the baseline"),
        ):
            said = whom == "the baseline" and line.row.case.problem in same
            if word == "unclear" and ratio and not said:
                why = TOO_WIDE if math.isfinite(ratio.half) else UNCERTAIN
                found.setdefault((whom, why), []).append(line)
    for (whom, why), some in found.items():
        more = f" and {len(some) - 1} more" if len(some) > 1 else ""
        verb = "are" if len(some) > 1 else "is"
        yield f"{names.case(some[0].row.case)}{more} {verb} not told apart from {whom}: {why}."


def _range(values: Sequence[float]) -> str:
    low, high = times(min(values)), times(max(values))
    return low if low == high else f"{low} to {high}"


def times(value: float) -> str:
    """Return a ratio as people read it: ``1.23x``."""
    if 0 < value < 0.1:
        return f"{value:.{1 - math.floor(math.log10(value))}f}x"
    return f"{value:.3f}x" if value < 1.1 else f"{value:.2f}x" if value < 100 else f"{value:.0f}x"


def _count(number: int) -> str:
    return "once" if number == 1 else "twice" if number == 2 else f"{number} times"


def _and(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def changes(runs: Sequence[Run], names: Sequence[str]) -> list[Finding]:
    """Return how the times of the first run compare to those of each other one: see ``runner compare``."""
    found = []
    for run, comparison in zip(runs[1:], compare.runs(runs, names), strict=True):
        counts = Counter(pair.word for pair in comparison.pairs)
        parts = [f"{counts[word]} {word}" for word in ("faster", "slower", "same", "unclear") if counts[word]]
        parts += [f"{len(comparison.left_out)} not comparable"] if comparison.left_out else []
        cases = f"{len(comparison.pairs)} common case{'s' * (len(comparison.pairs) != 1)}"
        summary = f"{comparison.name} against {comparison.reference}, {cases}: {', '.join(parts) or 'none'}."
        different = compare.differences(runs[0], run, (comparison.reference, comparison.name))
        details = [*(f"Different: {one}" for one in different), *_moved(comparison.pairs)]
        doubts = Counter(pair.doubt for pair in comparison.pairs if pair.word == "unclear" and pair.doubt)
        details += [f"Unclear, {count} of {len(comparison.pairs)}: {doubt}" for doubt, count in doubts.items()]
        found.append(Finding("", summary, details))
    return found


def _moved(pairs: Sequence[Pair]) -> Iterator[str]:
    """Yield the cases that are faster or slower, those that changed most first."""
    moved = sorted((pair for pair in pairs if pair.word in ("faster", "slower")), key=lambda pair: -abs(pair.ratio.log))
    for pair in moved[:MOST_MOVED]:
        ends = f" (95 % interval {times(pair.bounds[0])} to {times(pair.bounds[1])})" if pair.bounds else ""
        yield f"{pair.problem} {pair.implementation}: {pair.word}, {times(math.exp(pair.ratio.log))} the time{ends}"
    if len(moved) > MOST_MOVED:
        yield f"and {len(moved) - MOST_MOVED} more"
