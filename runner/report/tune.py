"""Find the fastest arguments of a kernel: the decisions of ``runner tune`` after its races, and its text.

A race samples all candidates of a problem in paired rounds, and leaves out those shown to be slower than the fastest
(``runner.timing.procedure.race``). Nothing here measures.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

import yaml

from runner.experiment.case import ARGS, CaseRecord, Choice
from runner.experiment.results import Comparison, Row, printable
from runner.report import derive
from runner.timing.statistics import BATCHES, Ratio

if TYPE_CHECKING:
    from runner.report.derive import Names

FEWEST_SAMPLES = 20  # that ``samples`` of the benchmark allows


@dataclass(frozen=True)
class Contest:
    """The candidates of one problem and implementation, and what is known of them so far."""

    default: CaseRecord  # without arguments
    cases: tuple[CaseRecord, ...]  # all candidates, the default among them
    left: tuple[CaseRecord, ...] = ()  # the fastest, and those not shown to be slower than it
    fastest: CaseRecord | None = None  # None: no race yet, or no candidate has a time
    failed: tuple[tuple[CaseRecord, str], ...] = ()  # candidates without a time that counts, and why
    calls: int = 0  # sampled to choose
    calls_again: int = 0  # sampled to confirm the choice
    gain: Ratio | None = None  # time of the fastest over the default's, from processes that chose nothing


def contests(cases: Sequence[CaseRecord]) -> list[Contest]:
    """Return a contest for each problem and implementation of ``cases``. The default is always a candidate."""
    found: dict[tuple[str, str], list[CaseRecord]] = {}
    for case in cases:
        default = replace(case, impl=_without_arguments(case.impl))
        found.setdefault((case.problem, default.impl.text), [default]).append(case)
    unique = [list({case.key: case for case in some}.values()) for some in found.values()]
    return [Contest(some[0], tuple(some)) for some in unique]


def _without_arguments(impl: Choice) -> Choice:
    return Choice(impl.name, {name: value for name, value in impl.fields.items() if not name.startswith(ARGS)})


def racing(case: CaseRecord) -> CaseRecord:
    """Return ``case`` for the race."""
    return replace(case, measures=(Choice("benchmark", {**case.measures[0].fields, "race": True}),))


def confirming(case: CaseRecord, process: int, processes: int) -> CaseRecord:
    """Return ``case`` for one of the ``processes`` that measure the gain, which share the rounds of a comparison."""
    fields: dict[str, Any] = dict(case.measures[0].fields)
    fields |= {name: round(math.sqrt(processes) * fields[name], 3) for name in ("target_pct", "target_cpu_pct")}
    fields |= {
        "race": False,
        "samples": FEWEST_SAMPLES,
        "paired_rounds": max(BATCHES, math.ceil(fields["paired_rounds"] / processes)),
    }
    return replace(case, measures=(Choice("benchmark", fields),), replica=process)


def judge(contest: Contest, rows: Sequence[Row], rounds: Sequence[Comparison]) -> Contest:
    """Return ``contest`` after the race whose ``rows`` and ``rounds`` are given.

    Without paired rounds, such as for very slow calls, the shortest time wins and nothing is shown to be slower.
    """
    by_key = {row.case.key: row for row in rows}
    raced, dropped = derive.by_key(rounds), {key for one in rounds for key in one.dropped}
    left: list[tuple[float, CaseRecord]] = []
    failed: list[tuple[CaseRecord, str]] = []
    measured = [(case, by_key.get(racing(case).key)) for case in contest.cases]
    for case, row in measured:
        if row is None or not _is_timed(row):
            failed.append((case, _why(row)))
        elif row.case.key not in dropped:
            left.append((_time_us(row, raced), case))
    return replace(
        contest,
        left=tuple(case for _, case in left),
        fastest=min(left, key=lambda one: one[0])[1] if left else None,
        failed=tuple(failed),
        calls=_calls([row for _, row in measured if row], rounds),
    )


def confirm(contest: Contest, processes: int, rows: Sequence[Row], rounds: Sequence[Comparison]) -> Contest:
    """Return ``contest`` with its gain, from the rows of the fastest and of the default in ``processes`` processes."""
    if contest.fastest is None or contest.fastest.key == contest.default.key:
        return contest
    numbers = range(1, processes + 1)
    mine, base = (
        [row for row in rows if row.case.key in {confirming(case, one, processes).key for one in numbers}]
        for case in (contest.fastest, contest.default)
    )
    timed = mine and base and all(map(_is_timed, (*mine, *base)))
    gain = derive.ratio_in_rounds(mine, base, derive.by_key(rounds)) if timed else None
    return replace(contest, gain=gain, calls_again=_calls((*mine, *base), rounds))


def _is_timed(row: Row) -> bool:
    return bool(derive.may_win(row) and row.time_us)


def _time_us(row: Row, raced: Mapping[str, Comparison]) -> float:
    """Return the time of ``row``, from the race if there was one."""
    key = row.case.key
    return fmean(raced[key].batches_us[key]) if key in raced else row.time_us or math.inf


def _calls(rows: Sequence[Row], rounds: Sequence[Comparison]) -> int:
    """Return how many calls were sampled for the times of ``rows`` and in their paired rounds."""
    total = 0
    for row in rows:
        figures: Mapping[str, Any] = row.metrics
        total += int(figures.get("samples") or 0) * int(figures.get("calls_per_sample") or 1)
        total += sum(one.calls.get(row.case.key, 0) for one in rounds)
    return total


def _why(row: Row | None) -> str:
    if row is None:
        return "not measured"
    return f"{row.status}: {row.reason}" if row.reason else str(row.metrics.get("verdict_reason") or "it has no time")


# --- text ---


def lines(contest: Contest, names: Names) -> list[str]:
    """Return what the terminal prints about ``contest``, without the command that runs the fastest."""
    if contest.fastest is None:
        reasons = Counter(why for _, why in contest.failed)
        why = reasons.most_common(1)[0][0] if reasons else "not measured"
        return [printable(f"tune: {names.heading(contest.default)}: no candidate has a time: {why}")]
    name = names.impl(contest.fastest)
    found = [
        f"tune: {names.heading(contest.default)}: {name}, the fastest of {len(contest.cases)}",
        f"  {_gain(contest, names)}",
    ]
    if tied := [names.impl(case) for case in contest.left if case.key != contest.fastest.key]:
        found.append(f"  cannot be told from it: {', '.join(tied)}")
    for why, count in Counter(why for _, why in contest.failed).items():
        found.append(f"  left out: {count}: {why}")
    again = f", and {contest.calls_again:,} to confirm it" if contest.calls_again else ""
    found.append(f"  sampled {contest.calls:,} calls to choose{again}")
    return list(map(printable, found))


def _gain(contest: Contest, names: Names) -> str:
    """Return what the fastest gains over the default, in words."""
    fastest, default = contest.fastest, names.impl(contest.default)
    if fastest is None or fastest.key == contest.default.key:
        return "that is its default: there is nothing to pin"
    if any(case.key == contest.default.key for case, _ in contest.failed):
        return f"{default} has no time to compare with"
    if contest.gain is None:
        return f"not compared with {default} in paired rounds: too slow for measure.benchmark.max_s, or it failed"
    speedup = f"{speedup_of(contest.gain)} the speed of {default}, measured again"
    return speedup if contest.gain.word == "faster" else f"{speedup}: not shown to be faster"


def speedup_of(gain: Ratio) -> str:
    """Return ``1.12x (1.10 to 1.14)``."""
    low, middle, high = (math.exp(-gain.log + half) for half in (-gain.half, 0.0, gain.half))
    return f"{middle:.3f}x ({low:.3f} to {high:.3f})" if math.isfinite(gain.half) else f"{middle:.3f}x (no interval)"


def experiment(case: CaseRecord, name: str, about: str, folder: str) -> str:
    """Return the YAML of an experiment that runs ``case``. ``folder`` is for ``--config-dir``."""
    fields = {key: value for key, value in case.impl.options.items() if not key.startswith(ARGS)}
    if case.impl.commit:
        fields["rev"] = case.impl.commit
    group = "file" if "path" in fields else case.impl.name
    own = {"name": case.impl.name} if group != case.impl.name else {}
    values = {
        "defaults": [{"override /workload": case.workload.name}, {"override /impl": group}],
        "name": name,
        "default_axes": False,
        "workload": dict(case.workload.fields),
        "impl": {**own, **fields, "args": case.impl.arguments},
    }
    head = f"# @package _global_\n# {printable(about)}\n#   python -m runner --config-dir {folder} +experiment={name}\n"
    return head + yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
