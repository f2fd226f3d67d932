"""Find the fastest arguments of a kernel by successive halving: the decisions of ``runner tune``, and its text.

A stage measures the candidates that are left in the same paired rounds, each stage longer than the one before. A
candidate that is shown to be slower than the fastest is left out of the next one. Nothing here measures.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import yaml

from runner.experiment.case import ARGS, CaseRecord, Choice
from runner.experiment.results import Comparison, Row, printable
from runner.report import derive
from runner.timing.statistics import BATCHES, LEVEL, Ratio

if TYPE_CHECKING:
    from runner.report.derive import Names

STAGES = (0.1, 0.3, 1.0)  # share of the samples and rounds of a case that each stage takes
FEWEST_SAMPLES = 20  # that ``samples`` of the benchmark allows


@dataclass(frozen=True)
class Contest:
    """One problem and implementation: the candidates that are left, and what is known so far."""

    default: CaseRecord  # without arguments; it is measured in each stage, also when it is left out
    left: tuple[CaseRecord, ...]  # candidates that are not shown to be slower than the fastest
    count: int  # candidates at first, the default among them
    fastest: CaseRecord | None = None  # of those left; None: not measured, or none has a time
    failed: tuple[tuple[CaseRecord, str], ...] = ()  # candidates without a time that counts, and why
    calls: int = 0  # sampled to choose, for the times of the cases
    calls_again: int = 0  # sampled to confirm the choice
    calls_each: float | None = None  # for a case that is measured in full; None: none was
    gain: Ratio | None = None  # time of the fastest over the default's, from processes that chose nothing

    @property
    def decided(self) -> bool:
        """Whether another stage can change nothing."""
        return len(self.left) <= 1

    @property
    def cases(self) -> list[CaseRecord]:
        """The cases of the next stage."""
        return list({case.key: case for case in (self.default, *self.left)}.values())


def contests(cases: Sequence[CaseRecord]) -> list[Contest]:
    """Return a contest for each problem and implementation of ``cases``. The default is always a candidate."""
    found: dict[tuple[str, str], list[CaseRecord]] = {}
    for case in cases:
        default = replace(case, impl=_without_arguments(case.impl))
        found.setdefault((case.problem, default.impl.text), [default]).append(case)
    unique = [list({case.key: case for case in some}.values()) for some in found.values()]
    return [Contest(some[0], tuple(some), len(some)) for some in unique]


def _without_arguments(impl: Choice) -> Choice:
    return Choice(impl.name, {name: value for name, value in impl.fields.items() if not name.startswith(ARGS)})


def staged(case: CaseRecord, share: float, process: int = 0) -> CaseRecord:
    """Return ``case`` with a share of the samples and rounds of its benchmark, and a wider interval accordingly."""
    fields: dict[str, Any] = dict(case.measures[0].fields)
    if share < 1:
        fields["samples"] = max(FEWEST_SAMPLES, round(share * fields["samples"]))
        fields["paired_rounds"] = max(BATCHES, round(share * fields["paired_rounds"]))
        fields["max_s"] *= share
        fields |= {name: round(fields[name] / math.sqrt(share), 3) for name in ("target_pct", "target_cpu_pct")}
    return replace(case, measures=(Choice("benchmark", fields),), replica=process)


def beaten(over_fastest: Mapping[str, Ratio], level: float) -> set[str]:
    """Return the names of those that are shown to be slower than the fastest.

    ``over_fastest``: the time of each, the fastest included, over that of the fastest. The one that is the fastest in
    truth is among them with a probability of at most ``level``, whichever of them seems the fastest: for it to be so,
    one of its comparisons with the others must be wrong, and each is with ``level / (count - 1)`` (Bonferroni).
    """
    each = level / max(1, len(over_fastest) - 1)
    return {name for name, ratio in over_fastest.items() if ratio.log > 0 and ratio.chance / 2 <= each}


def judge(contest: Contest, share: float, rows: Sequence[Row], rounds: Sequence[Comparison]) -> Contest:
    """Return ``contest`` after the stage of ``share``, whose ``rows`` and ``rounds`` are given."""
    by_key, compared = {row.case.key: row for row in rows}, derive.by_key(rounds)
    measured = [row for case in contest.cases if (row := by_key.get(staged(case, share).key))]
    timed: dict[str, Row] = {}
    failed = list(contest.failed)
    for case in contest.left:
        row = by_key.get(staged(case, share).key)
        if row and derive.may_win(row) and row.time_us:
            timed[case.key] = row
        else:
            failed.append((case, _why(row)))
    known = {case.key: case for case in contest.left}
    seen = sum(map(_calls, measured))
    contest = replace(
        contest,
        failed=tuple(failed),
        calls=contest.calls + seen,
        calls_each=seen / len(measured) if measured and share == 1 else None,
    )
    if not timed:
        return replace(contest, left=(), fastest=None)
    first = next(iter(timed.values()))
    fastest = min(timed, key=lambda key: _ratio(timed[key], first, compared).log)
    slower = beaten({key: _ratio(row, timed[fastest], compared) for key, row in timed.items()}, LEVEL / len(STAGES))
    left = tuple(known[key] for key in timed if key not in slower)
    return replace(contest, left=left, fastest=known[fastest])


def confirm(contest: Contest, processes: int, rows: Sequence[Row], rounds: Sequence[Comparison]) -> Contest:
    """Return ``contest`` with its gain, from the rows of the fastest and of the default in ``processes`` processes."""
    if contest.fastest is None or contest.fastest.key == contest.default.key:
        return contest
    mine, base = (
        [row for row in rows if row.case.key in {staged(case, 1.0, one).key for one in range(1, processes + 1)}]
        for case in (contest.fastest, contest.default)
    )
    timed = _are_timed(mine) and _are_timed(base)
    gain = derive.ratio_in_rounds(mine, base, derive.by_key(rounds)) if timed else None
    calls = [_calls(row) for row in (*mine, *base)]
    each = contest.calls_each or (sum(calls) / len(calls) if calls else None)
    return replace(contest, gain=gain, calls_again=sum(calls), calls_each=each)


def _are_timed(rows: Sequence[Row]) -> bool:
    return bool(rows) and all(derive.may_win(row) and row.time_us for row in rows)


def _ratio(row: Row, base: Row, compared: Mapping[str, Comparison]) -> Ratio:
    """Return the time of ``row`` over that of ``base``; without paired rounds, one that decides nothing."""
    if found := derive.ratio_in_rounds([row], [base], compared):
        return found
    return Ratio(math.log((row.time_us or 1.0) / (base.time_us or 1.0)), math.inf, 1, paired=False)


def _calls(row: Row) -> int:
    figures: Mapping[str, Any] = row.metrics
    return int(figures.get("samples") or 0) * int(figures.get("calls_per_sample") or 1)


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
        f"tune: {names.heading(contest.default)}: {name}, the fastest of {contest.count}",
        f"  {_gain(contest, names)}",
    ]
    if tied := [names.impl(case) for case in contest.left if case.key != contest.fastest.key]:
        found.append(f"  cannot be told from it: {', '.join(tied)}")
    for why, count in Counter(why for _, why in contest.failed).items():
        found.append(f"  left out: {count}: {why}")
    again = f", and {contest.calls_again:,} to confirm it" if contest.calls_again else ""
    whole = (
        f"; all {contest.count} in full: about {contest.calls_each * contest.count:,.0f}" if contest.calls_each else ""
    )
    found.append(f"  sampled {contest.calls:,} calls to choose{again}{whole}")
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
