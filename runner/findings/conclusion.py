"""The written conclusion of a run, worked out from its rows: who is fastest, where that changes, what is unclear."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, make_dataclass
from inspect import isfunction, signature
from itertools import pairwise
from statistics import median
from typing import Any, get_type_hints

from ..measure.columns import check_columns
from ..records.bad_input import BadInput, choices
from ..records.case import CaseRecord, Choice
from ..records.figures import as_typed, counted, finite, listed, times
from ..records.grouping import grouped
from ..records.options import option_defaults
from ..records.schema import build, to_fields
from . import analyses as every_analysis
from . import fastest
from .differences import differences
from .fastest import Leader
from .lines import Line
from .names import Names
from .no_answer import no_answer
from .notes import and_more, row_notes
from .ratios import bounds, doubt
from .run import Run, joint
from .run_comparison import TimedPair, compare_runs

MOST_MOVED = 20  # cases listed that are faster or slower than in another run
NO_WINNER = "no correct result has a time, so none is the fastest."
LONE = "has no other to compare with"
TOO_WIDE = "the interval of their ratio includes both; more samples, or replicas=3, would decide"
NOT_COMPARED = "the times are of different devices or numbers of threads, or one has no interval"


@dataclass(frozen=True)
class Statement:
    """Sentences about one workload, or about two runs."""

    summary: str  # one or two sentences
    details: Sequence[str]  # a sentence for each series of sizes


@dataclass(frozen=True)
class Conclusion:
    """The conclusion in sentences without markup."""

    answers: Sequence[str]  # to the question of the experiment, by its analyses
    findings: Sequence[Statement]  # one per workload
    unclear: Sequence[str]  # what cannot be told, and why
    failures: Sequence[str]  # wrong results, and cases without a result
    doubts: Sequence[str]  # what is odd about the times that there are


def conclude(run: Run) -> Conclusion:
    """Return the conclusion of ``run``."""
    names, lines, findings = run.names, run.lines, []
    leaders = fastest.leaders(lines, names)
    for workload in dict.fromkeys(line.case.workload.name for line in lines):
        won = [leader for leader in leaders if leader.case.workload.name == workload and leader.fastest]
        members = [line for line in lines if line.case.workload.name == workload]
        summary = _summary(won, members, names) if won else f"{workload}: {NO_WINNER}"
        findings.append(Statement(summary, list(_series(won, names))))
    rows = [line.row for line in lines]
    failures = row_notes([row for row in rows if row.status != "ok"], names)
    doubts = row_notes([row for row in rows if row.status == "ok"], names)
    return Conclusion(answers(run), findings, list(_unclear(lines, names)), failures, doubts)


def check(analysis: Choice, cases: Sequence[CaseRecord]) -> dict[str, Any]:
    """Return the arguments of ``analysis``, whose fields are those of ``cases``. Raises BadInput."""
    known = analyses()
    if analysis.name not in known:
        raise BadInput(f"conclusion: {analysis.name}: no such analysis; {choices(analysis.name, known)}")
    function, where = known[analysis.name], f"conclusion.{analysis.name}"
    parameters = [each for each in signature(function).parameters.values() if each.kind is each.KEYWORD_ONLY]
    hints = get_type_hints(function)
    defaults = {each.name: each.default for each in parameters if each.default is not each.empty}
    fields = make_dataclass(analysis.name, [(each.name, hints[each.name]) for each in parameters])
    arguments = to_fields(build(fields, {**defaults, **analysis.fields}, where))
    there = dict.fromkeys(name for case in cases for name in case.flat)
    for name in ("over", "field"):
        if name in arguments and (field := arguments[name]) not in there:
            raise BadInput(f"{where}.{name}: {field}: no case has this field; {choices(field, there)}")
    sizes = (case.flat.get(arguments.get("over", "")) for case in cases)
    if odd := [size for size in sizes if size is not None and (finite(size) or 0) <= 0]:
        text = f"{arguments['over']}={as_typed(odd[0])} is not a number above 0"
        raise BadInput(f"{where}.over: {text}; name a field of sizes")
    if len(arguments.get("steps", ())) != len(arguments.get("passes", ())):
        raise BadInput(f"{where}.passes: give one number for each of steps")
    without, impls = arguments.get("without"), {case.impl.name for case in cases}
    if without and without not in impls and not option_defaults(f"impl/{without}"):  # a sweep may leave one out
        raise BadInput(f"{where}.without: {without}: no such implementation; {choices(without, impls)}")
    check_columns([arguments["column"]] if "column" in arguments else arguments.get("columns", ()))
    return arguments


def analyses() -> dict[str, Callable[..., Iterable[str]]]:
    """Return the public functions of analyses.py by their names."""
    functions = {name: member for name, member in vars(every_analysis).items() if isfunction(member)}
    there = every_analysis.__name__
    return {name: each for name, each in functions.items() if name[0] != "_" and each.__module__ == there}


def answers(run: Run) -> list[str]:
    """Return the sentences of the analyses of ``run``."""
    sentences: list[str] = []
    for analysis in run.plan.conclusion:
        try:
            arguments = check(analysis, run.plan.cases)
        except BadInput as error:  # an analysis that this project does not have
            sentences.append(str(error))
            continue
        said = list(analyses()[analysis.name](run, **arguments))
        sentences += said or [no_answer(run, analysis.name, arguments)]
    return list(dict.fromkeys(sentences))  # several may lack an answer for one reason


def _summary(leaders: Sequence[Leader], lines: Sequence[Line], names: Names) -> str:
    """Say how often each implementation is the fastest, and by how much it beats the baseline."""
    workload, count = leaders[0].case.workload.name, len(leaders)
    if count == 1:
        return f"{workload}: {_sentence(leaders, '', [])}"
    alone, lone = (Counter(leader.fastest[0] for leader in leaders if leader.word == word) for word in ("yes", "only"))
    open_ = sum(leader.word == "unknown" for leader in leaders)
    tied = sum(len(leader.fastest) > 1 for leader in leaders)
    parts = [f"{label} is the fastest at {number} of {count} problems" for label, number in alone.most_common()]
    parts += [f"{label} {LONE} at {number} of {count} problems" for label, number in lone.most_common()]
    parts += [f"at {tied} of {count} the fastest are tied"] if tied else []
    parts += [f"at {open_} of {count} the shortest time is not compared with all others"] if open_ else []
    text = f"{workload}: {listed(parts)}."
    best = alone.most_common(1)[0][0] if alone else leaders[0].fastest[0]
    mine = [line for line in lines if names.impl(line.case) == best and line.vs_baseline not in (None, "unclear")]
    over = [line.speedup for line in mine if line.speedup]
    base = {names.impl(line.case) for line in lines if line.baseline}
    if over and len(base) == 1:
        text += f" {best} is {_range(over)} as fast as {base.pop()}, the baseline (median {times(median(over))})."
    return text


def _series(leaders: Sequence[Leader], names: Names) -> Iterator[str]:
    """Yield a sentence for each series of sizes that are swept: who is fastest from where to where, and by how much."""
    for axis, text, members in fastest.series_of(leaders, names):
        stretches = fastest.segments(members)
        said = [_sentence(stretch, axis, labels).removesuffix(".") for labels, stretch in stretches]
        count = sum(set(one).isdisjoint(other) for (one, _), (other, _) in pairwise(stretches))
        often = {1: "once", 2: "twice"}.get(count, f"{count} times")
        changes = f" The fastest changes {often}." if count else ""
        if axis or len(leaders) > 1:
            yield f"{f'{text}: ' if text else ''}{'; '.join(said)}.{changes}"


def _sentence(leaders: Sequence[Leader], axis: str, labels: Sequence[str]) -> str:
    """Return who is fastest at the sizes of ``leaders``, how far ahead, and the interval of that."""
    labels = labels or leaders[0].fastest
    where = ""
    if axis:
        sizes = [leader.case.workload.fields.get(axis) for leader in leaders]
        where = f" at {axis}={sizes[0]}" if len(sizes) == 1 else f" from {axis}={sizes[0]} to {sizes[-1]}"
    if len(labels) > 1:
        return f"{listed(labels)} cannot be told apart{where}."
    mine = [leader for leader in leaders if leader.fastest[0] == labels[0]]
    ahead = [leader for leader in mine if leader.ahead is not None and leader.conclusion in ("faster", "same")]
    tied = sum(len(leader.fastest) > 1 for leader in leaders)
    words = {leader.word for leader in leaders}
    first = LONE if words == {"only"} else "is the fastest"
    if "unknown" in words:
        first = "has the shortest time, but is not compared with every other"
    elif words > {"only"}:
        first = f"is the fastest or {LONE}"
    text = f"{labels[0]} {first}{where}"
    text += f" (tied at {tied} of these {len(leaders)} sizes)" if tied and leaders[1:] else ""
    if not ahead:
        return f"{text}."
    nexts = listed(list(dict.fromkeys(leader.next for leader in ahead)))
    interval = ""
    if all(leader.low is not None for leader in ahead):
        low, high = min(leader.low or 0.0 for leader in ahead), max(leader.high or 0.0 for leader in ahead)
        interval = f" (95 % interval {times(low)} to {times(high)})"
    return f"{text}, {_range([leader.ahead or 0.0 for leader in ahead])} as fast as the next, {nexts}{interval}."


def _unclear(lines: Sequence[Line], names: Names) -> Iterator[str]:
    """Say which comparisons with the fastest and with the baseline have no conclusion, and why."""
    same = {line.case.problem for line in lines if line.winner and line.baseline}
    unclear = []
    for line in lines:
        if line.vs_winner == "unclear" and line.behind:
            unclear.append(("the fastest", line.behind, line))
        if line.vs_baseline == "unclear" and line.ratio and line.case.problem not in same:
            unclear.append(("the baseline", line.ratio, line))
    for (whom, reason), members in grouped(unclear, lambda item: (item[0], doubt(item[1]) or TOO_WIDE)).items():
        verb = "are" if members[1:] else "is"
        yield f"{and_more([line for *_, line in members], names)} {verb} not told apart from {whom}: {reason}."
    if apart := [line for line in lines if line.fastest == "unknown" and not line.winner and not line.behind]:
        verb = "are" if apart[1:] else "is"
        yield f"{and_more(apart, names)} {verb} not compared with the fastest: {NOT_COMPARED}."


def _range(values: Sequence[float]) -> str:
    low, high = times(min(values)), times(max(values))
    return low if low == high else f"{low} to {high}"


def _winners(runs: Sequence[Run], names: Sequence[str]) -> Iterator[Statement]:
    """Yield a statement for each workload of which several runs have the same problems."""
    labels, won = joint(runs), dict[tuple[str, str], dict[str, Sequence[str]]]()
    for run, name in zip(runs, names, strict=True):
        for leader in fastest.leaders(run.lines, labels):
            won.setdefault((leader.case.workload.name, labels.heading(leader.case)), {})[name] = leader.fastest
    for workload, problems in grouped(won.items(), lambda item: item[0][0]).items():
        common = [(problem, by_run) for (_, problem), by_run in problems if sum(map(bool, by_run.values())) > 1]
        always, details = Counter[str](), list[str]()
        for problem, by_run in common:
            first, *others = filter(None, by_run.values())
            if every := [label for label in first if all(label in other for other in others)]:
                always[every[0]] += 1
            else:
                winners = [f"{listed(mine)} in {run}" for run, mine in by_run.items() if mine]
                details.append(f"{problem}: {'; '.join(winners)}")
        same = "".join(f", {label} at {count}" for label, count in always.most_common())
        summary = f"the fastest is the same at {always.total()} of {len(common)} problems that several runs have{same}"
        if common:
            yield Statement(f"{workload}: {summary}.", details)


def together(runs: Sequence[Run], names: Sequence[str]) -> list[Statement]:
    """Compare several runs: first their winners, then the times of each other run with those of the first."""
    statements = list(_winners(runs, names))
    for run, comparison in zip(runs[1:], compare_runs(runs, names), strict=True):
        counts = Counter(pair.word for pair in comparison.pairs)
        parts = [f"{counts[word]} {word}" for word in ("faster", "slower", "same", "unclear") if counts[word]]
        parts += [f"{len(comparison.left_out)} not comparable"] if comparison.left_out else []
        cases = counted(len(comparison.pairs), "common case")
        summary = f"{comparison.name} against {comparison.reference}, {cases}: {', '.join(parts) or 'none'}."
        different = differences(runs[0], run, (comparison.reference, comparison.name))
        details = [*(f"Different: {text}" for text in different), *_moved(comparison.pairs)]
        doubts = Counter(pair.doubt for pair in comparison.pairs if pair.word == "unclear" and pair.doubt)
        details += [f"Unclear, {count} of {len(comparison.pairs)}: {doubt}" for doubt, count in doubts.items()]
        statements.append(Statement(summary, details))
    return statements


def _moved(pairs: Sequence[TimedPair]) -> Iterator[str]:
    """Yield the cases that are faster or slower, those that changed most first."""
    moved = sorted((pair for pair in pairs if pair.word in ("faster", "slower")), key=lambda pair: -abs(pair.ratio.log))
    for pair in moved[:MOST_MOVED]:
        around = f" (95 % interval {' to '.join(map(times, ends))})" if (ends := bounds(pair.ratio)) else ""
        yield f"{pair.name}: {pair.word}, {times(math.exp(pair.ratio.log))} the time{around}"
    if len(moved) > MOST_MOVED:
        yield f"and {len(moved) - MOST_MOVED} more"
